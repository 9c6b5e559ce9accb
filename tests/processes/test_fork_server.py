"""Local workers that are forked from a server."""

import contextlib
import os
import random
import secrets
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

import pytest

from detached import change_constants
from python_runs import gone
from scalable import ScalableSession
from scalable.providers.local import fork_server
from scalable.providers.local.fork_server import ForkServerError, ForkServerProcess
from scalable.providers.local.launcher import ProcessLauncher


def state():
    """Everything that a fork could have wrong."""
    return {
        "pid": os.getpid(),
        "parent": os.getppid(),
        "session": os.getsid(0),
        "group": os.getpgid(0),
        "argv": sys.argv,
        "path": sys.path,
        "directory": os.getcwd(),
        "umask": next(
            line.split()[1]
            for line in Path("/proc/self/status").read_text().splitlines()
            if line.startswith("Umask")
        ),
        "random": (random.random(), uuid.uuid4(), secrets.token_hex(8)),
        "temporary": tempfile.gettempdir(),
        "files": sorted(
            os.readlink(f"/proc/self/fd/{number}")
            for number in os.listdir("/proc/self/fd")
            if os.path.exists(f"/proc/self/fd/{number}")
        ),
        "ignored": [n for n in (1, 2, 13, 15, 17) if signal.getsignal(n) is signal.SIG_IGN],
        "blocked": signal.pthread_sigmask(signal.SIG_BLOCK, []),
        "command": Path("/proc/self/cmdline").read_bytes().rstrip(b"\0").split(b"\0"),
        "nice": os.nice(0),
        "oom": Path("/proc/self/oom_score_adj").read_text(),
    }


def environment():
    return dict(os.environ)


def server_of(session):
    """The fork server of a session, as it is now."""
    launchers = [pool.launcher for pool in session.cluster.manager.inventory.pools.values()]
    return next(one for one in launchers if isinstance(one, ProcessLauncher))._server


def test_a_forked_worker_is_as_a_new_interpreter(tmp_path, monkeypatch):
    """One pool is forked, and one that sets a variable of the interpreter is not."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LC_NUMERIC", "C")
    pools = {
        "fork": {"workers": 2, "env": {"GREETING": "hello"}},
        "exec": {"workers": 1, "env": {"GREETING": "hello", "LC_NUMERIC": "POSIX"}},
    }
    session = ScalableSession.local(pools, processes=True)
    os.environ["LATE"] = "yes"  # after the session was made, and before its start
    mask = os.umask(0o027)
    try:
        with session as client:
            server = server_of(session)
            addresses = {"fork": [], "exec": []}
            for address, worker in client.scheduler_info(n_workers=-1)["workers"].items():
                addresses[next(iter(worker["resources"]))].append(address)
            forked = list(client.run(state, workers=addresses["fork"]).values())
            (new,) = client.run(state, workers=addresses["exec"]).values()
            variables = client.run(environment)
            assert {one["parent"] for one in forked} == {server.pid}
            assert new["parent"] == os.getpid()
            for one in forked:
                assert one["session"] == one["group"] == one["pid"]
                for name in ("argv", "directory", "umask", "ignored", "blocked", "command"):
                    assert one[name] == new[name], name
                for name in ("nice", "oom", "temporary"):
                    assert one[name] == new[name], name
                # Dask puts its scratch directory first.
                assert one["path"][1:] == new["path"][1:]
                kinds = [name.partition(":")[0] for name in one["files"]]
                assert kinds.count("pipe") == 1
                assert sum("pidfd" in name for name in one["files"]) == 1
                # Its own memory by which it shows processes of this machine that it is on it.
                files = [name for name in one["files"] if "memfd:scalable-segment" not in name]
                assert not [n for n in files if "exec-" in n or "deleted" in n]
            assert not set(forked[0]["random"]) & set(forked[1]["random"])
            fork_variables = variables[addresses["fork"][0]]
            assert fork_variables["GREETING"] == "hello"
            assert fork_variables["LATE"] == "yes"
            assert fork_variables == {**variables[addresses["exec"][0]], "LC_NUMERIC": "C"}
            assert not _holds(server.pid, session.cluster.security.tls_worker_key.splitlines()[1])
    finally:
        os.umask(mask)
        del os.environ["LATE"]
    assert gone(server.pid)
    assert all(gone(one["pid"]) for one in [*forked, new])


def _holds(pid, text):
    """Whether the writable memory of a process has this text."""
    needle = text.encode()
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", 0) as memory:
        for line in maps:
            where, rights = line.split()[:2]
            if rights.startswith("rw") and "[v" not in line:
                begin, end = (int(number, 16) for number in where.split("-"))
                memory.seek(begin)
                with contextlib.suppress(OSError):  # a file that is shorter than its mapping
                    if needle in memory.read(end - begin):
                        return True
    return False


def test_the_search_for_a_secret_finds_one():
    secret = secrets.token_hex(20)
    assert _holds(os.getpid(), secret)


def pids_of(client, asked=os.getpid):
    """Process ids, or none while a worker is just being lost."""
    try:
        return set(client.run(asked).values())
    except OSError:
        return set()


def test_workers_outlive_their_fork_server_and_are_replaced_without_it(
    eventually, caplog, tmp_path, monkeypatch
):
    monkeypatch.setattr("scalable.manager.pools.backoff_s", lambda _: 0.0)
    change_constants(tmp_path, monkeypatch, worker__parent_watch={"PARENT_INTERVAL_S": 0.05})
    session = ScalableSession.local({"a": 2}, processes=True)
    with session as client:
        first = server_of(session)
        before = pids_of(client)
        os.kill(first.pid, signal.SIGKILL)
        eventually(lambda: not first.is_alive())
        time.sleep(0.2)  # they look for their parent several times
        assert pids_of(client) == before
        (victim, survivor) = before
        os.kill(victim, signal.SIGKILL)
        eventually(lambda: len(pids_of(client) - {victim}) == 2)
        assert survivor in pids_of(client)
        assert f"fork server {first.pid} was lost" in caplog.text
        # The one after that is forked again, from another server.
        (second,) = pids_of(client) - {survivor}
        os.kill(second, signal.SIGKILL)
        eventually(lambda: len(pids_of(client) - {second}) == 2)
        last = server_of(session)
        assert last is not first
        assert last.pid in pids_of(client, os.getppid)
        pids = pids_of(client)
    assert all(gone(pid) for pid in {*pids, last.pid})


def test_a_server_with_threads_forks_nothing(tmp_path, monkeypatch, caplog):
    (tmp_path / "sitecustomize.py").write_text(
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with ScalableSession.local({"a": 1}, processes=True) as client:
        assert set(client.run(os.getppid).values()) == {os.getpid()}
    assert "without a fork server: the fork server has 2 threads" in caplog.text


def test_a_server_that_does_not_answer_is_given_up(monkeypatch, caplog, eventually):
    monkeypatch.setattr(fork_server, "ANSWER_TIMEOUT_S", 0.2)
    session = ScalableSession.local({"a": 1}, processes=True)
    with session as client:
        os.kill(server_of(session).pid, signal.SIGSTOP)
        session.scale("a", 2)
        eventually(lambda: client.worker_count("a") == 2)
        assert "did not answer within 0.2 s" in caplog.text


def test_a_server_ends_with_a_killed_script(tmp_path, eventually):
    """A child of the script holds every descriptor of it, and the server ends all the same."""
    script = tmp_path / "workflow.py"
    script.write_text(
        "import os, signal\n"
        "from scalable.providers.local.fork_server import ForkServerProcess\n"
        "server = ForkServerProcess()\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    signal.pause()\n"
        "    os._exit(0)\n"
        "print(server.pid, child, flush=True)\n"
        "signal.pause()\n"
    )
    process = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    pid, child = map(int, process.stdout.readline().split())
    process.kill()
    process.wait(timeout=30)
    process.stdout.close()
    eventually(lambda: gone(pid), "the end of the fork server")
    assert not gone(child)
    os.kill(child, signal.SIGKILL)


def test_closing_a_server_that_loads_still_is_quick_and_final():
    server = ForkServerProcess()
    server.close()
    server.close()
    assert gone(server.pid)
    with pytest.raises(ForkServerError), open(os.devnull, "wb") as log:
        server.fork(fork_server.start_of(server, dict(os.environ), (), None), log)


def test_modules_in_the_working_directory_are_not_loaded_by_the_server(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    marker = tmp_path / "loaded"
    for name in ("tornado", "yaml", "queue", "calendar"):
        (tmp_path / f"{name}.py").write_text(f"open({str(marker)!r}, 'a').write('{name}')\n")
    server = ForkServerProcess()
    try:
        server._wait_until_ready()
        assert not marker.exists()
    finally:
        server.close()
