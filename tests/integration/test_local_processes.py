"""The local provider with real worker processes."""

import os
import signal
import ssl
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from distributed import Client
from distributed.security import Security

from scalable import Manifest, ManifestError, ProviderError, ScalableSession
from scalable.providers.registry import option_models
from scalable.session.request import Request


def getpid(*_):
    return os.getpid()


def held(value, path):
    """Leave a line for each start, and run until a file is there."""
    with open(f"{path}-starts", "a") as starts:
        starts.write(f"{value}\n")
    while not os.path.exists(path):
        time.sleep(0.02)
    return value


def nap(value, seconds=0.1):
    time.sleep(seconds)
    return value


def read_stdin():
    return sys.stdin.read()


def worker_pids(session):
    return set(session.client.run(os.getpid).values())


@pytest.fixture(scope="module")
def shared():
    """Two pools of worker processes, of two workers and one; they leave nothing behind."""
    listened = listening([os.getpid()])
    made = ScalableSession.local({"demeter": 2, "post": 1}, processes=True)
    made.start()
    made.listened_before = listened
    yield made
    pids = pids_of(made)
    directory = made.client.run(lambda dask_worker: dask_worker.local_directory, on_error="ignore")
    scratch = [Path(path) for path in directory.values()]
    made.close()
    assert not [pid for pid in pids if psutil.pid_exists(pid)]
    assert not any(path.parents[1].exists() for path in scratch)


@pytest.fixture(scope="module", autouse=True)
def no_crash_loops():
    """Tests end workers of the same pools again and again."""
    with pytest.MonkeyPatch.context() as patch:
        for module in ("units", "reconciler"):
            patch.setattr(f"scalable.manager.{module}.CRASH_LOOP_STARTS", 100)
        yield


@pytest.fixture
def session(shared, eventually, starts_at_once):
    """The two pools, for a test that ends workers: they are replaced without a pause."""
    eventually(lambda: len(shared.cluster.scheduler.workers) == 3, "the successors")
    eventually(lambda: len(pids_of(shared)) == 3)
    return shared


def pids_of(session):
    try:
        return worker_pids(session)
    except OSError:  # one is just being lost
        return set()


def listening(pids):
    """Return the addresses on which processes listen."""
    return {
        connection.laddr
        for pid in pids
        for connection in psutil.Process(pid).net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    }


def test_the_pools_are_disjoint_processes(shared):
    client = shared.client
    demeter = set(client.gather(client.map(getpid, range(20), tag="demeter")))
    post = set(client.gather(client.map(getpid, range(20), tag="post")))
    assert (len(demeter), len(post)) == (2, 1)
    assert not demeter & post
    assert os.getpid() not in demeter | post
    assert client.worker_count("demeter") == 2
    assert client.worker_count("nothing") == 0
    assert client.worker_count() == 3


@pytest.fixture
def starts_at_once(monkeypatch):
    """Replace lost workers without a pause."""
    monkeypatch.setattr("scalable.manager.pools.backoff_s", lambda _: 0.0)


def test_a_killed_worker_is_replaced_and_its_call_runs_elsewhere(session, tmp_path, eventually):
    client = session.client
    addresses = {pid: address for address, pid in client.run(os.getpid).items()}
    before = set(addresses)
    victim = client.submit(getpid, tag="demeter").result(timeout=60)
    futures = client.map(held, range(8), [str(tmp_path / "over")] * 8, tag="demeter")
    workers = session.cluster.scheduler.workers.values()
    eventually(lambda: sum(len(ws.executing) for ws in workers) == 2)
    os.kill(victim, signal.SIGKILL)
    eventually(lambda: addresses[victim] not in session.cluster.scheduler.workers)
    (tmp_path / "over").touch()
    assert client.gather(futures) == list(range(8))
    eventually(lambda: len(session.cluster.scheduler.workers) == 3)
    assert victim not in worker_pids(session)
    assert len(before & worker_pids(session)) == 2


def test_killing_the_worker_of_one_call_four_times_does_not_fail_it(session, tmp_path, eventually):
    """Dask gives a task up at the fourth lost worker; three losses must still end well."""
    client, starts = session.client, tmp_path / "over-starts"
    future = client.submit(held, "done", str(tmp_path / "over"), tag="post")
    killed = set()
    for lost in range(3):
        (pid,) = eventually(lambda: fresh_worker(session, "post", killed))
        eventually(lambda n=lost: starts.exists() and starts.read_text() == "done\n" * (n + 1))
        os.kill(pid, signal.SIGKILL)
        killed.add(pid)
    (tmp_path / "over").touch()
    assert future.result(timeout=120) == "done"


def fresh_worker(session, tag, killed):
    workers = session.client.scheduler_info(n_workers=-1)["workers"]
    addresses = [a for a, w in workers.items() if tag in w["resources"]]
    try:
        pids = (
            set(session.client.run(os.getpid, workers=addresses).values()) if addresses else set()
        )
    except (OSError, ValueError):
        return set()
    return pids - killed


def test_nobody_gets_in_without_the_cluster_s_credentials(shared):
    address = shared.cluster.scheduler_address
    assert address.startswith("tls://127.0.0.1:")
    for security in (None, Security.temporary()):
        plain = address if security else address.replace("tls://", "tcp://")
        with pytest.raises((OSError, TimeoutError, ssl.SSLError)):
            Client(plain, security=security, timeout=1)


def test_everything_listens_on_loopback(session):
    found = listening([os.getpid(), *worker_pids(session)]) - session.listened_before
    assert len(found) == 4  # the scheduler and three workers, and no HTTP server
    assert {address.ip for address in found} == {"127.0.0.1"}


def test_no_secret_is_in_an_argument_an_environment_or_a_file(shared, tmp_path):
    key = shared.cluster.security.tls_worker_key
    needle = key.splitlines()[1]
    for pid in worker_pids(shared):
        process = psutil.Process(pid)
        assert needle not in " ".join(process.cmdline())
        assert needle not in str(process.environ())
    logs = [p.read_text() for p in (shared.run_path / "logs").iterdir()]
    assert len(logs) >= 3
    assert not any(needle in text for text in logs)


def test_the_record_and_the_scratch_space_are_closed_to_others(shared):
    assert shared.run_path.stat().st_mode & 0o077 == 0
    directories = shared.client.run(lambda dask_worker: dask_worker.local_directory)
    for directory in directories.values():
        assert Path(directory).parents[1].stat().st_mode & 0o077 == 0


def test_the_scratch_space_is_gone_after_the_end_of_a_session_without_record(monkeypatch):
    monkeypatch.setenv("SCALABLE_TELEMETRY", "0")
    session = ScalableSession.local({"a": 1}, processes=True)
    with session as client:
        (scratch,) = client.run(lambda dask_worker: dask_worker.local_directory).values()
        assert Path(scratch).is_dir()
    assert Path(scratch).parents[1].name.startswith("scalable-")
    assert not Path(scratch).parents[1].exists()


def test_a_pool_without_workers_makes_no_directory_for_them(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with ScalableSession.local({"a": 0}, processes=True):
        made = list(tmp_path.glob("scalable-*"))
        assert made
        assert all(path.name.startswith("scalable-node-") for path in made), made
    assert not list(tmp_path.glob("scalable-*"))


@pytest.mark.parametrize("number", [signal.SIGSTOP, 40])
def test_a_worker_that_is_stopped_or_killed_oddly_is_replaced(
    session, eventually, number, monkeypatch
):
    monkeypatch.setattr("scalable.providers.local.launcher.STOPPED_GRACE_S", 0.3)
    monkeypatch.setattr("scalable.providers.local.launcher.TERMINATE_S", 0.3)
    client = session.client
    pid = client.submit(getpid, tag="post").result(timeout=60)
    os.kill(pid, number)
    future = client.submit(nap, "done", 0.0, tag="post")
    assert future.result(timeout=120) == "done"
    eventually(lambda: not alive(pid))


def test_a_fork_of_the_script_leaves_the_session_alone(shared):
    child = os.fork()
    if child == 0:
        shared.close()
        os._exit(17)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 17
    assert shared.client.submit(getpid, tag="post").result(timeout=60) > 0


def test_the_reason_of_a_loss_quotes_no_log_of_dask(session, tmp_path, eventually):
    client, rows = session.client, session.run_path / "workers.jsonl"
    before = rows.read_text().count("lost: ")
    pid = client.submit(getpid, tag="post").result(timeout=60)
    future = client.submit(held, 1, str(tmp_path / "go"), tag="post")
    eventually(lambda: os.path.exists(tmp_path / "go-starts"))
    os.kill(pid, signal.SIGTERM)
    eventually(lambda: rows.read_text().count("lost: ") > before)
    (tmp_path / "go").touch()
    assert future.result(timeout=60) == 1
    assert "Async instruction" not in rows.read_text()
    assert "distributed" not in (session.run_path / "failures.jsonl").read_text()


def test_options_that_need_a_process_are_refused_for_threads(tmp_path):
    session = ScalableSession.local({"a": {"env": {"X": "1"}}})
    with pytest.raises(ManifestError, match="set processes: true"):
        session.start()


def test_a_container_runtime_that_is_not_installed_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "m.yaml").write_text(
        "version: 1\nproject: {name: p}\ncomponents: {a: {image: x}}\n"
        "targets: {local: {provider: local, processes: true, containers: apptainer}}\n"
    )
    with pytest.raises(ProviderError, match="apptainer"):
        ScalableSession.from_yaml(tmp_path / "m.yaml").start()


def test_children_of_a_killed_worker_end_with_it(session, eventually):
    client = session.client
    worker, child = client.submit(start_child, tag="post").result(timeout=60)
    assert psutil.pid_exists(child)
    os.kill(worker, signal.SIGKILL)
    eventually(lambda: not alive(child), "the child of the killed worker")


def start_child():
    child = subprocess.Popen(["sleep", "infinity"])
    return os.getpid(), child.pid


def alive(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_calls_cannot_read_the_lifeline(shared):
    assert shared.client.submit(read_stdin, tag="post").result(timeout=60) == ""


# Setup commands -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("component", "target", "message"),
    [
        ({"preload_script": "setup.sh"}, {}, "must be a Python module (a .py file)"),
        ({"setup": ["module load gcc"]}, {}, "setup needs a separate process"),
        ({"python": "/usr/bin/python3"}, {}, "python needs a separate process"),
        (
            {"setup": ["module load gcc"]},
            {"provider": "kubernetes", "image": "i:1"},
            "provider 'kubernetes' does not support setup: it has images",
        ),
    ],
)
def test_what_cannot_be_set_up_is_refused(component, target, message):
    data = {
        "version": 1,
        "project": {"name": "p"},
        "targets": {"t": {"provider": "local", **target}},
        "components": {"m": component},
    }
    with pytest.raises(ManifestError) as caught:
        Request(Manifest.from_mapping(data, option_models()).resolve("t")).require_valid()
    assert message in str(caught.value)
