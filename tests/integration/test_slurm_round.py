"""One short round on a real Slurm; `tests/places` tests it in full."""

import json
import os

from python_runs import run_python
from scalable import ScalableSession

MANIFEST = """\
version: 1
project: {name: round}
targets:
  hpc: {provider: slurm, queue: batch, walltime: "10:00", interface: lo}
components:
  model:
    cpus: 2
    memory: 200M
    workers: 1
    setup: ["export FROM_SETUP=$SLURM_JOB_ID"]
    env: {OF_NODE: "job $SLURM_JOB_ID, $NOWHERE"}
  post: {cpus: 1, memory: 200M, workers: 1}
"""


def job_of(value):
    job = os.environ["SLURM_JOB_ID"]
    if "OF_NODE" in os.environ:
        assert os.environ["OF_NODE"] == f"job {job}, $NOWHERE"
        assert os.environ["FROM_SETUP"] == job
    return value, job


def test_a_session_runs_calls_in_jobs_replaces_a_lost_one_and_leaves_none(
    on_slurm, tmp_path, monkeypatch, eventually
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name in ("UNSEEN_GRACE_S", "SLOWEST_POLL_S"):
        monkeypatch.setattr(f"scalable.providers.slurm.launcher.{name}", 0.5)
    (tmp_path / "scalable.yaml").write_text(MANIFEST)
    session = ScalableSession.from_yaml(target="hpc")
    with session as client:
        results = client.gather([client.submit(job_of, n, tag="model") for n in range(8)])
        assert [value for value, _ in results] == list(range(8))
        _, post = client.submit(job_of, results, tag="post").result(timeout=60)
        assert post not in {job for _, job in results}
        assert len(on_slurm.jobs()) == 2
        on_slurm.command("scancel", post)
        eventually(
            lambda: client.submit(job_of, 1, tag="post", pure=False).result(timeout=60)[1] != post
        )
        session.scale("model", 0)
        eventually(lambda: len(on_slurm.jobs()) == 1)
    assert on_slurm.jobs() == []
    rows = (session.run_path / "tasks.jsonl").read_text().splitlines()
    ended = [row["tag"] for row in map(json.loads, rows) if row["state"] == "succeeded"]
    assert ended.count("model") == 8
    assert ended.count("post") >= 2


def test_a_wrong_partition_ends_a_script_with_slurms_words(on_slurm, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "scalable.yaml").write_text(MANIFEST.replace("queue: batch", "queue: nosuch"))
    (tmp_path / "workflow.py").write_text(
        "from scalable import ScalableSession\nScalableSession.from_yaml(target='hpc').start()\n"
    )
    for command in (["workflow.py"], ["-m", "scalable", "run", "--target", "hpc"]):
        done = run_python(*command)
        assert done.returncode == 1
        assert "Traceback" not in done.stderr
        assert "error: Slurm refused sbatch: sbatch: error: invalid partition" in done.stderr
        assert done.stderr.count("invalid partition") == 1, done.stderr
        hint = done.stderr.partition("  hint: ")[2]
        assert hint.startswith("the partitions are batch")
