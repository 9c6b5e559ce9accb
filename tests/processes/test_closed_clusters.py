"""Clusters that are closed while clients are open and tasks run."""

import pytest

from python_runs import run_python

SCRIPT = """
import sys, threading
from scalable import ScalableSession

def endless():
    while True:
        threading.Event().wait(0.01)

if __name__ == "__main__":
    session = ScalableSession.local({"a": 1}, processes=sys.argv[1] == "processes")
    client = session.start()
    result = client.submit(abs, -2, tag="a")
    result.result()
    running = client.submit(endless, tag="a")
    while not any(client.processing().values()):
        threading.Event().wait(0.01)
    session.cluster.close()
    for use in (running.result, lambda: client.submit(abs, 1, tag="a")):
        try:
            use()
        except Exception as error:
            print(type(error).__name__, error)
    print(client.status)
"""
CLOSED = "ClusterError the client's cluster was closed\n"


@pytest.mark.parametrize("workers", ["threads", "processes"])
def test_a_closed_cluster_closes_its_clients_in_silence(tmp_path, workers):
    script = tmp_path / "workflow.py"
    script.write_text(SCRIPT)
    done = run_python(script, workers, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, f"{CLOSED}{CLOSED}closed\n"), done.stderr
    lines = [line for line in done.stderr.splitlines() if "no longer waiting for it" not in line]
    assert lines == []


GEVENT = """
from scalable import ScalableSession
ScalableSession.local({"a": 1}).start()
"""


def test_a_session_with_threads_of_gevent_is_an_error(tmp_path):
    """The module stands for gevent's, which is not among the packages of the tests."""
    package = tmp_path / "gevent"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "monkey.py").write_text("def is_module_patched(name):\n    return True\n")
    done = run_python("-c", "import gevent.monkey\n" + GEVENT, cwd=tmp_path)
    assert done.returncode == 1
    error, hint = done.stderr.splitlines()
    assert error.startswith("error: gevent has replaced the threads of this process")
    assert "monkey.patch_all()" in hint


LEFT_OPEN = """
import atexit

def use_all():
    for client in clients:
        try:
            client.submit(abs, -2, tag="a").result()
        except Exception as error:
            print(type(error).__name__, "closed" in str(error))

atexit.register(use_all)
from scalable import ScalableClient, ScalableSession

session = ScalableSession.local({"a": 1})
clients = [session.start(), ScalableClient(session.cluster)]
"""


def test_clients_that_are_left_open_are_closed_at_exit(tmp_path):
    done = run_python("-c", LEFT_OPEN, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "ClusterError True\n" * 2
