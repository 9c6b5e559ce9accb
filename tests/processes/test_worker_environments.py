"""What a component and a target give the processes of their workers."""

import os
import sys
import time

import pytest

from scalable import ClusterError, ScalableSession


def getpid(*_):
    return os.getpid()


def nap(value, seconds=0.1):
    time.sleep(seconds)
    return value


def environment(name):
    return os.environ.get(name)


def slurm_variables(*_):
    return {name for name in os.environ if name.startswith(("SLURM", "PMI"))}


def test_workers_inherit_a_slurm_job_without_its_step(tmp_path, monkeypatch):
    kept = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n1", "SLURM_ARRAY_TASK_ID": "3"}
    step = {"SLURM_PROCID": "0", "SLURM_MEM_PER_CPU": "9", "SLURM_CPU_BIND": "x", "PMI_RANK": "0"}
    for name, value in (kept | step).items():
        monkeypatch.setenv(name, value)
    (tmp_path / "scalable.yaml").write_text(
        "version: 1\nproject: {name: p}\ntargets: {local: {provider: local, processes: true}}\n"
        "components: {a: {}, b: {preload_script: p.py}}\n"
    )
    (tmp_path / "p.py").touch()
    with ScalableSession.from_yaml(tmp_path / "scalable.yaml", target="local") as client:
        for tag in "ab":  # one is forked, one is not
            assert client.submit(slurm_variables, tag=tag).result(timeout=60) == kept.keys()


@pytest.fixture
def starts_at_once(monkeypatch):
    """Replace lost workers without a pause."""
    monkeypatch.setattr("scalable.manager.pools.backoff_s", lambda _: 0.0)


def test_ending_workers_while_they_start_fails_no_call(eventually):
    session = ScalableSession.local({"a": 0, "b": 0}, processes=True)
    with session as client:
        futures = client.map(nap, range(30), [0.05] * 30, tag="a")
        for pause in (0.0, 0.03, 0.06, 0.09, 0.12, 0.15, 0.2):
            session.scale("a", 1)
            time.sleep(pause)
            session.scale("a", 0)
            time.sleep(0.05)
        session.scale("a", 1)
        assert client.gather(futures) == list(range(30))


def test_a_component_s_environment_memory_and_threads_reach_its_workers():
    pools = {
        "big": {"cpus": 4, "memory": "600M", "env": {"MODEL": "gcam", "LC_ALL": "C"}},
        "small": {"env": {"OMP_NUM_THREADS": "7"}},
    }
    with ScalableSession.local(pools, processes=True, threads_per_worker=2) as client:
        assert client.submit(environment, "MODEL", tag="big").result(timeout=60) == "gcam"
        assert client.submit(environment, "MODEL", tag="small").result(timeout=60) is None
        assert client.submit(environment, "OMP_NUM_THREADS", tag="big").result(timeout=60) == "2"
        assert client.submit(environment, "OMP_NUM_THREADS", tag="small").result(timeout=60) == "7"
        workers = client.scheduler_info(n_workers=-1)["workers"].values()
        shape = {next(iter(w["resources"])): (w["memory_limit"], w["nthreads"]) for w in workers}
        assert shape["big"] == (600 * 10**6, 2)
        assert shape["small"][1] == 2


def test_a_preload_script_runs_once_before_the_worker(tmp_path):
    files = {"a": "warm.py", "b": "with space.py", "c": "random.py"}
    for tag, name in files.items():
        runs = str(tmp_path / tag)
        (tmp_path / name).write_text(
            "import os\nos.environ['WARM'] = 'yes'\n"
            f"open({runs!r}, 'a').write('run ')\n"
            f"def dask_setup(worker):\n    open({runs!r}, 'a').write('setup ')\n"
            f"async def dask_teardown(worker):\n    open({runs!r}, 'a').write('teardown ')\n"
        )
    pools = {tag: {"preload_script": str(tmp_path / name)} for tag, name in files.items()}
    with ScalableSession.local(pools, processes=True) as client:
        for tag in files:
            assert client.submit(environment, "WARM", tag=tag).result(timeout=60) == "yes"
            assert (tmp_path / tag).read_text() == "run setup "
    assert {(tmp_path / tag).read_text() for tag in files} == {"run setup teardown "}


def test_a_pool_that_cannot_start_ends_the_start_with_the_reason(
    tmp_path, monkeypatch, starts_at_once
):
    for module in ("units", "reconciler"):
        monkeypatch.setattr(f"scalable.manager.{module}.CRASH_LOOP_STARTS", 2)
    script = tmp_path / "broken.py"
    script.write_text("raise RuntimeError('no licence for the model')\n")
    session = ScalableSession.local({"a": {"preload_script": str(script)}}, processes=True)
    with pytest.raises(ClusterError, match="no licence for the model") as caught:
        session.start()
    assert "diskutils" not in str(caught.value)
    report = (session.run_path / "failures.jsonl").read_text()
    assert "(exit code 1): RuntimeError: no licence for the model; its last output" in report
    assert '"failed"' in (session.run_path / "run.json").read_text()


def test_setup_and_python_start_the_workers(tmp_path, monkeypatch):
    monkeypatch.setenv("NODE_SCRATCH", "/scratch/of node")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nOWN_PYTHON=yes exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    model = {
        "workers": 1,
        "setup": ["FROM_SETUP='a b'", "export FROM_SETUP"],
        "python": str(python),
        "env": {"SCRATCH": "$NODE_SCRATCH/1", "LITERAL": "$NO_SUCH_VARIABLE"},
    }
    with ScalableSession.local({"m": model}, processes=True) as client:
        names = ["FROM_SETUP", "OWN_PYTHON", "SCRATCH", "LITERAL"]
        found = client.gather(client.map(environment, names, tag="m"))
    assert found == ["a b", "yes", "/scratch/of node/1", "$NO_SUCH_VARIABLE"]


def test_setup_line_that_fails_is_the_reason(monkeypatch, starts_at_once):
    for module in ("units", "reconciler"):
        monkeypatch.setattr(f"scalable.manager.{module}.CRASH_LOOP_STARTS", 2)
    model = {"workers": 1, "setup": ["true", "module load gcc/12"]}
    with pytest.raises(ClusterError) as caught:  # noqa: SIM117
        with ScalableSession.local({"m": model}, processes=True) as client:
            client.submit(getpid, tag="m").result(timeout=60)
    assert "setup failed with exit code 127: module load gcc/12" in str(caught.value)
