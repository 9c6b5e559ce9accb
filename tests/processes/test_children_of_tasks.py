"""Processes that tasks start: the worker goes on, whatever becomes of them."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading

import joblib
import pytest

from python_runs import run_python
from scalable import ScalableSession

WAIT = "import threading; threading.Event().wait()"


def wait_forever():
    threading.Event().wait()


def terminated_process(kind):
    context = multiprocessing.get_context(kind)
    process = context.Process(target=wait_forever)
    process.start()
    process.terminate()
    process.join()
    return process.exitcode


def forked(number):
    """Fork a child that waits, send it a signal, and return how it ended."""
    pid = os.fork()
    if pid == 0:
        signal.pause()
        os._exit(0)
    os.kill(pid, number)
    return os.WTERMSIG(os.waitpid(pid, 0)[1])


def forked_that_leaves(how):
    """Fork a child that leaves this function, and return its exit code."""
    pid = os.fork()
    if pid == 0:
        if how == "returns":
            return None
        raise SystemExit(3) if how == "exits" else LookupError("child")
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def subprocess_with(**options):
    process = subprocess.Popen([sys.executable, "-c", WAIT], **options)
    process.terminate()
    return process.wait()


def of_loky():
    return joblib.Parallel(n_jobs=2, backend="loky")(joblib.delayed(abs)(-x) for x in range(4))


def pid():
    return os.getpid()


@pytest.fixture(scope="module")
def client():
    with ScalableSession.local({"a": 1}, processes=True) as client:
        yield client


@pytest.fixture(autouse=True)
def same_worker(client):
    """The worker that runs a test's task also runs the next one."""
    before = client.submit(pid, tag="a", pure=False).result(timeout=60)
    yield
    assert client.submit(pid, tag="a", pure=False).result(timeout=60) == before


@pytest.mark.parametrize("kind", ["fork", "spawn", "forkserver"])
def test_a_terminated_process_leaves_the_worker(client, kind):
    call = client.submit(terminated_process, kind, tag="a")
    assert call.result(timeout=60) == -signal.SIGTERM


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_a_forked_child_ends_the_child(client, number):
    assert client.submit(forked, number, tag="a").result(timeout=60) == number


@pytest.mark.parametrize("way", ["submit", "executor"])
@pytest.mark.parametrize(("how", "code"), [("returns", 0), ("raises", 1), ("exits", 3)])
def test_a_forked_child_that_leaves_its_function_exits(client, way, how, code):
    if way == "submit":
        call = client.submit(forked_that_leaves, how, tag="a")
    else:
        call = client.pool("a").submit(forked_that_leaves, how)
    assert call.result(timeout=60) == code


@pytest.mark.parametrize("options", [{}, {"preexec_fn": os.setpgrp}], ids=["plain", "preexec"])
def test_a_terminated_program_leaves_the_worker(client, options):
    found = client.submit(lambda: subprocess_with(**options), tag="a").result(timeout=60)
    assert found == -signal.SIGTERM


def test_processes_of_joblib_leave_the_worker(client):
    assert client.submit(of_loky, tag="a").result(timeout=60) == [0, 1, 2, 3]


# Functions of the script --------------------------------------------------------------------------

SCRIPT = """\
import concurrent.futures, multiprocessing, os, sys
from scalable import ScalableSession

class Shape:
    def __init__(self, size):
        self.size = size

def square(x):
    return Shape(x.size ** 2)

def by_pool(kind):
    with multiprocessing.get_context(kind).Pool(2) as pool:
        return [shape.size for shape in pool.map(square, [Shape(2), Shape(3)])]

def by_futures(kind):
    context = multiprocessing.get_context(kind)
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as executor:
        return [shape.size for shape in executor.map(square, [Shape(2), Shape(3)])]

def main():
    with ScalableSession.local({"a": 1}, processes=True) as client:
        worker = client.submit(os.getpid, tag="a").result(timeout=60)
        for kind in ("fork", "spawn", "forkserver"):
            print(client.submit(by_pool, kind, tag="a").result(timeout=60))
            print(client.pool("a").submit(by_futures, kind).result(timeout=60))
        assert client.pool("a").submit(os.getpid).result(timeout=60) == worker

"""


def run_script(tmp_path, text):
    (tmp_path / "work.py").write_text(text)
    return run_python("work.py", cwd=tmp_path)


def test_processes_of_tasks_find_functions_of_the_script_and_leave_the_worker(tmp_path):
    done = run_script(tmp_path, SCRIPT + "if __name__ == '__main__':\n    main()\n")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[4, 9]\n" * 6


def test_a_script_without_a_guard_starts_no_session_in_new_processes(tmp_path):
    begin = "with ScalableSession.local({'a': 1}, processes=True) as client:\n"
    call = "    print(client.submit(by_futures, 'spawn', tag='a').result(timeout=60))\n"
    done = run_script(tmp_path, SCRIPT + begin + call)
    assert done.returncode == 1
    assert "BrokenProcessPool" in done.stderr
    logs = "".join(path.read_text() for path in tmp_path.rglob("*.log"))
    assert "if __name__ == '__main__'" in done.stderr + logs
