"""Detached clusters on a real Slurm, from `up` to `down`."""

import json
import os
import subprocess

import pytest

import scalable
from scalable.records import find
from verbs import program, status

MANIFEST = """\
version: 1
project: {name: tests}
targets:
  hpc: {provider: slurm, scheduler: %s, walltime: "10:00"}
  home: {provider: local, processes: true}
components:
  a: {cpus: 1, memory: 200M, workers: 2}
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("SCALABLE_RUNS_DIR", str(tmp_path / "runs"))
    return tmp_path


@pytest.mark.parametrize("scheduler", ["login", "job"])
def test_a_cluster_on_slurm(on_slurm, place, scheduler, eventually):
    (place / "scalable.yaml").write_text(MANIFEST % scheduler)
    asked = program("up", "--target", "hpc", "--name", "one")
    assert asked.returncode == 2
    assert "--yes" in asked.stderr  # a queue is involved
    made = program("up", "--target", "hpc", "--name", "one", "--yes")
    assert made.returncode == 0, made.stderr
    services = 2 if scheduler == "job" else 0
    eventually(lambda: status("one")["pools"]["a"]["running"] == 2)
    assert len(on_slurm.jobs()) == 2 + services
    with scalable.connect("one") as client:
        jobs = client.gather(client.map(os.getenv, ["SLURM_JOB_ID"] * 4, tag="a", pure=False))
        assert all(jobs)
        program("scale", "one", "a=1")
        eventually(lambda: len(on_slurm.jobs()) == 1 + services)
        assert client.submit(abs, -1, tag="a").result(timeout=60) == 1
    row = json.loads(program("list", "--format", "json").stdout)["clusters"][0]
    assert (row["state"], row["provider"]) == ("running", "slurm")
    assert program("logs", "one", "--pool", "a").stdout
    assert program("down", "one", "--yes").returncode == 0
    eventually(lambda: on_slurm.jobs() == [], timeout=60)
    assert [p.name for p in (place / "state/scalable/clusters").iterdir()] == [".lock"]


def test_the_manager_of_slurm_workers_is_killed_and_resumed(on_slurm, place, eventually):
    (place / "scalable.yaml").write_text(MANIFEST % "login")
    assert program("up", "--target", "hpc", "--name", "one", "--yes").returncode == 0
    eventually(lambda: status("one")["pools"]["a"]["running"] == 2)
    before = sorted(job.split()[0] for job in on_slurm.jobs())
    manager = find("one").path / "managers" / "hpc" / "manager.json"
    os.kill(json.loads(manager.read_text())["pid"], 9)
    assert program("resume", "one").stdout == "started manager hpc\n"
    eventually(lambda: [m["state"] for m in status("one")["managers"]] == ["attached"])
    eventually(lambda: status("one")["state"] == "running")
    with scalable.connect("one") as client:
        assert client.submit(abs, -1, tag="a").result(timeout=60) == 1
    assert sorted(job.split()[0] for job in on_slurm.jobs()) == before
    assert program("down", "one", "--yes").returncode == 0


def test_a_scheduler_whose_job_is_cancelled_has_failed(on_slurm, place, eventually):
    (place / "scalable.yaml").write_text(MANIFEST % "job")
    assert program("up", "--target", "hpc", "--name", "one", "--yes").returncode == 0
    eventually(lambda: status("one")["pools"]["a"]["running"] == 2)
    (scheduler,) = (job.split()[0] for job in on_slurm.jobs() if "@scheduler" in job)
    subprocess.run(["scancel", scheduler], check=True, timeout=30)
    eventually(lambda: on_slurm.jobs() == [], timeout=60)
    found = status("one")
    assert found["state"] == "failed"
    assert "its scheduler got SIGTERM from outside; its logs are in" in found["reason"]
    assert program("down", "one", "--yes").returncode == 0
