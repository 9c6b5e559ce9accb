"""Detached clusters on a real Slurm, from `up` to `down`."""

import json
import os
import subprocess
import sys

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


def test_a_run_whose_scheduler_is_a_job(on_slurm, place, eventually):
    (place / "scalable.yaml").write_text(MANIFEST % "job")
    (place / "workflow.py").write_text(
        "import os, subprocess, scalable\n"
        "with scalable.ScalableSession.from_yaml() as client:\n"
        "    print(client.submit(os.getenv, 'SLURM_JOB_ID', tag='a').result())\n"
        "    print(subprocess.check_output(['squeue', '-h', '-o', '%j'], text=True))\n"
    )
    done = program("run", "--target", "hpc", "--detach")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[0].isdigit()
    assert ".@scheduler" in done.stdout
    assert "Tasks:    1 done" in done.stdout
    eventually(lambda: on_slurm.jobs() == [], timeout=60)
    assert [p.name for p in (place / "state/scalable/clusters").iterdir()] == [".lock"]


def test_the_manager_of_slurm_workers_is_killed_and_resumed(on_slurm, place, eventually):
    (place / "scalable.yaml").write_text(MANIFEST % "login")
    assert program("up", "--target", "hpc", "--name", "one", "--yes").returncode == 0
    eventually(lambda: status("one")["pools"]["a"]["running"] == 2)
    before = sorted(job.split()[0] for job in on_slurm.jobs())
    manager = find("one").path / "managers" / "hpc" / "manager.json"
    os.kill(json.loads(manager.read_text())["pid"], 9)
    assert program("manager", "restart", "one").stdout == "started manager hpc\n"
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


WORKFLOW = """\
import os
from scalable import ScalableSession

if __name__ == "__main__":
    with ScalableSession.from_yaml(target="hpc") as client:
        job = client.submit(os.getenv, "SLURM_JOB_ID", tag="a").result()
        print("worker in another job:", job != os.environ["SLURM_JOB_ID"])
"""


@pytest.mark.parametrize("on", ["--target hpc --yes", "--cluster one"])
def test_a_run_in_a_job_leaves_no_process_outside(on_slurm, place, eventually, on):
    (place / "scalable.yaml").write_text(MANIFEST % "job")
    (place / "workflow.py").write_text(WORKFLOW)
    if "--cluster" in on:
        assert program("up", "--target", "hpc", "--name", "one", "--yes").returncode == 0
    command = f"{sys.executable} -m scalable run scalable.yaml {on}"
    job = on_slurm.command("sbatch", "--parsable", "--output=run.log", "--wrap", command).strip()
    eventually(lambda: all(line.split()[0] != job for line in on_slurm.jobs()), timeout=100)
    assert "worker in another job: True" in (place / "run.log").read_text()
    if "--cluster" in on:
        assert program("down", "one", "--yes").returncode == 0
    eventually(lambda: on_slurm.jobs() == [], timeout=60)


@pytest.mark.slow
def test_a_cluster_ends_before_the_walltime_of_its_schedulers_job(on_slurm, place, eventually):
    (place / "scalable.yaml").write_text((MANIFEST % "job").replace("10:00", "1:30"))
    up = program("up", "--target", "hpc", "--name", "one", "--yes")
    assert up.returncode == 0, up.stderr
    eventually(lambda: status("one")["state"] == "running")
    assert "Stops:     in 1 m" in program("status", "one").stdout
    (scheduler,) = [job.split()[0] for job in on_slurm.jobs() if "@scheduler" in job]
    eventually(lambda: on_slurm.jobs() == [], timeout=150)
    shown = subprocess.run(
        ["scontrol", "show", "job", scheduler], capture_output=True, text=True, check=True
    )
    assert "JobState=COMPLETED" in shown.stdout
    (run,) = (place / "runs").glob("*/run.json")
    assert json.loads(run.read_text())["status"] == "completed"
    assert [p.name for p in (place / "state/scalable/clusters").iterdir()] == [".lock"]


@pytest.mark.slow
def test_results_outlive_walltimes_of_as_many_jobs_as_at_most_allows(on_slurm, place, eventually):
    manifest = (MANIFEST % "login").replace('"10:00"', '"1:00", at_most: 2')
    (place / "scalable.yaml").write_text(manifest)
    (place / "workflow.py").write_text(
        "import os, time, scalable\n"
        "def work(number):\n    time.sleep(3)\n    return os.environ['SLURM_JOB_ID']\n"
        "with scalable.ScalableSession.from_yaml() as client:\n"
        "    print(len(set(client.gather(client.map(work, range(60), tag='a')))))\n"
    )
    done = program("run", "--target", "hpc", timeout=280)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[0]) >= 4  # each job had a successor
    assert "Tasks:    60 done\n" in done.stdout
    assert "run more than once" not in done.stdout
