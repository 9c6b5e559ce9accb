"""However a script ends, its workers end too, and its record says how it ended."""

import json
import os
import re
import signal
import subprocess
import sys
import textwrap

import psutil
import pytest

from python_runs import gone
from scalable.runs.reading import read_run

HEAD = """
import os, signal, sys, threading, time
from scalable import ScalableSession
session = ScalableSession.local({"a": 1, "b": 1}, processes=True)
def work(*_):
    threading.Event().wait()
"""


@pytest.fixture
def script(tmp_path):
    """Start a script in an empty directory; it is killed at the end if it still runs."""
    started = []

    def start(body):
        path = tmp_path / "workflow.py"
        path.write_text(HEAD + textwrap.dedent(body))
        process = subprocess.Popen(
            # Python 3.12 warns of each fork in a program with threads.
            [sys.executable, "-W", "ignore::DeprecationWarning", str(path)],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=30)


def run_of(tmp_path):
    (run,) = (tmp_path / ".scalable" / "runs").iterdir()
    return run, json.loads((run / "run.json").read_text())


def pids_from(process):
    line = process.stdout.readline()
    assert line.startswith("pids"), line + process.stderr.read()
    return [int(pid) for pid in line.split()[1:]]


SHOW = 'print("pids", *client.run(os.getpid).values(), flush=True)\n'


@pytest.mark.parametrize(
    ("ending", "code", "status"),
    [("raise RuntimeError('no data for 2050')", 1, "failed"), ("sys.exit(0)", 0, "completed")],
)
def test_a_script_that_ends_by_itself(script, tmp_path, ending, code, status):
    process = script(f"with session as client:\n    {SHOW}    {ending}\n")
    pids = pids_from(process)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == code, errors
    assert all(gone(pid) for pid in pids)
    run, record = run_of(tmp_path)
    assert record["status"] == status
    assert (run / "summary.json").exists()
    if code == 1:
        assert "no data for 2050" in errors
        assert "no data for 2050" in (run / "failures.jsonl").read_text()
    else:
        assert errors == ""


@pytest.mark.parametrize(
    ("ending", "code", "status"), [("pass", 0, "completed"), ("1/0", 1, "failed")]
)
def test_a_script_that_forgets_to_close(script, tmp_path, ending, code, status):
    process = script(f"client = session.start()\n{SHOW}{ending}\n")
    pids = pids_from(process)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == code, errors
    assert code or not errors
    assert all(gone(pid) for pid in pids)
    assert run_of(tmp_path)[1]["status"] == status


def test_a_script_that_is_interrupted(script, tmp_path):
    process = script(
        f"with session as client:\n    {SHOW}    client.submit(work, tag='a').result()\n"
    )
    pids = pids_from(process)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode in (130, -signal.SIGINT), errors
    assert all(gone(pid) for pid in pids)
    assert run_of(tmp_path)[1]["status"] == "cancelled"


def test_a_second_interrupt_while_a_session_closes(script):
    process = script(
        "session = ScalableSession.local({'a': 1}, processes=False)\n"
        "def interrupt():\n    os.kill(os.getpid(), signal.SIGINT)\n"
        "with session as client:\n"
        "    future = client.submit(work, tag='a')\n"
        "    while not any(client.processing().values()):\n        time.sleep(0.01)\n"
        "    threading.Timer(0.2, interrupt).start()\n"
        "    interrupt()\n"
    )
    _, errors = process.communicate(timeout=60)
    assert process.returncode in (130, -signal.SIGINT), errors
    assert "KeyboardInterrupt" in errors
    assert "CancelledError" not in errors


#: Shows the scratch space of the workers, and runs until it is killed.
RUN = f"""
with session as client:
    {SHOW.strip()}
    where = client.run(lambda dask_worker: dask_worker.local_directory)
    print(*where.values(), flush=True)
    client.submit(work, tag='a').result()
"""


@pytest.mark.parametrize("telemetry", ["1", "0"])
def test_a_script_that_is_killed(script, tmp_path, eventually, telemetry, monkeypatch):
    monkeypatch.setenv("SCALABLE_TELEMETRY", telemetry)
    process = script(RUN)
    pids = pids_from(process)
    directories = process.stdout.readline().split()
    assert len(directories) == 2
    assert all(os.path.isdir(d) for d in directories)
    process.kill()
    process.communicate(timeout=30)
    eventually(lambda: all(gone(pid) for pid in pids), "the workers' end")
    scratch = [os.path.dirname(os.path.dirname(d)) for d in directories]
    assert all("scalable-" in os.path.basename(d) for d in scratch)
    eventually(lambda: not any(map(os.path.exists, scratch)), "the end of the scratch space")
    if telemetry == "1":
        run, record = run_of(tmp_path)
        assert (record["status"], read_run(run).status) == ("running", "interrupted")


def test_a_killed_script_whose_worker_holds_python_s_lock(script, eventually):
    process = script(
        f"with session as client:\n    {SHOW}"
        "    futures = client.map(sum, [range(4 * 10**9)] * 2)\n"
        "    signal.pause()\n"
    )
    pids = pids_from(process)
    used = {pid: psutil.Process(pid).cpu_times().user for pid in pids}

    def in_the_sum():  # a rate would depend on what else the machine does
        return any(psutil.Process(pid).cpu_times().user > used[pid] + 0.3 for pid in pids)

    eventually(in_the_sum, "busy workers")
    process.kill()
    eventually(lambda: all(gone(pid) for pid in pids), "the workers' end")


def test_a_script_without_a_guard_and_its_own_modules(script, tmp_path):
    (tmp_path / "mymodel.py").write_text("def run(x):\n    return x * 2\n")
    process = script(
        "import mymodel\n"
        "with session as client:\n"
        "    print(client.gather(client.map(mymodel.run, range(4), tag='a')))\n"
    )
    shown, errors = process.communicate(timeout=60)
    assert shown.strip() == "[0, 2, 4, 6]", errors
    assert errors == ""


NOTE = """
def note(x):
    time.sleep(0.1)
    open(str(x), "w").close()
"""


def test_a_script_that_ends_waits_for_the_calls_of_its_executors(script, tmp_path):
    process = script(
        f"{NOTE}"
        "client = session.start()\n"
        "client.pool(tag='a').submit(note, 0)\n"
        "pool = client.pool(tag='b')\n"
        "pool.map(note, range(1, 6))\n"
        "pool.submit(note, 6)\n"
    )
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert {str(x) for x in range(7)} <= {path.name for path in tmp_path.iterdir()}


def test_an_interrupt_ends_the_wait_for_calls_of_executors(script, tmp_path):
    process = script(
        "from scalable.client import dispatcher as unfinished_calls\n"
        "unfinished_calls.SAY_AFTER_S = 0.1\n"
        "client = session.start()\n"
        "futures = [client.pool(tag='b').submit(work) for _ in range(3)]\n"
        "while not futures[0].running():\n    time.sleep(0.01)\n"
    )
    # A task that is on its way to another worker is not counted.
    line = next(
        line for line in process.stderr if re.search(r"waits for [1-3] unfinished tasks?", line)
    )
    assert "Ctrl-C cancels them" in line
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert re.search(r"[1-3] tasks of executors are cancelled", errors)


def test_a_session_that_is_closed_counts_the_calls_that_it_ends(script):
    process = script(
        "client = session.start()\n"
        "futures = client.pool(tag='b').map_async(work, range(50))\n"
        "other = client.submit(work, tag='a')\n"
        "while not any(client.processing().values()):\n    time.sleep(0.01)\n"
        "session.close()\n"
    )
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "closes with 51 unfinished tasks" in errors


def test_an_interrupt_while_the_session_starts(script, tmp_path, eventually):
    process = script("print('pids', flush=True)\nwith session as client:\n    signal.pause()\n")
    pids_from(process)
    eventually(lambda: list(tmp_path.glob(".scalable/runs/*/run.json")))
    children = eventually(lambda: psutil.Process(process.pid).children())
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode in (130, -signal.SIGINT), errors
    assert "distributed" not in errors
    assert errors.endswith("KeyboardInterrupt\n")
    assert all(gone(child.pid) for child in children)
    assert run_of(tmp_path)[1]["status"] == "cancelled"


INTERRUPTED_IMPORT = """
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "scalable.manager.pool_cluster":
            try:
                os.kill(os.getpid(), signal.SIGINT)
            except KeyboardInterrupt:  # as some modules do
                raise ImportError("it cannot be loaded")

sys.meta_path.insert(0, Finder())
with session as client:
    pass
"""


def test_an_interrupt_while_modules_load_is_not_an_error_of_theirs(script):
    _, errors = (process := script(INTERRUPTED_IMPORT)).communicate(timeout=60)
    assert process.returncode in (130, -signal.SIGINT), errors
    assert "ImportError" not in errors
    assert errors.endswith("KeyboardInterrupt\n")


def test_a_killed_script_whose_forked_child_lives_on(script, eventually):
    """The child holds the other end of the workers' lifelines; they end all the same."""
    process = script(
        f"with session as client:\n    {SHOW}"
        "    child = os.fork()\n"
        "    if child == 0:\n"
        "        signal.pause()\n"
        "        os._exit(0)\n"
        "    print(child, flush=True)\n"
        "    signal.pause()\n"
    )
    pids = pids_from(process)
    child = int(process.stdout.readline())
    process.kill()
    eventually(lambda: all(gone(pid) for pid in pids), "the workers' end")
    assert not gone(child)
    os.kill(child, signal.SIGKILL)


FORKED = """
def held():
    while not os.path.exists("go"):
        time.sleep(0.02)

session = ScalableSession.local({"a": 1})
with session as client:
    pool = client.pool(tag="a")
    future, call = client.submit(held, tag="a"), pool.submit(held)
    results = pool.imap(abs, range(3))
    ways = {
        "result": lambda: future.result(timeout=60), "submit": lambda: client.submit(abs, 1),
        "gather": lambda: client.gather([future]), "map": lambda: client.map(abs, [1]),
        "scatter": lambda: client.scatter([1]), "graph": lambda: client.get({"n": (abs, 1)}, "n"),
        "run": lambda: client.run(abs, 1), "call": lambda: call.result(),
        "wait": lambda: call.exception(), "pool": lambda: pool.submit(abs, 1),
        "pool map": lambda: list(pool.map(abs, [1])), "next": lambda: next(results),
    }

    def tried():
        for name, way in ways.items():
            try:
                print(name, way())
            except Exception as error:
                print(name, type(error).__name__, "is a fork of it" in str(error))
        pool.shutdown()
        sys.stdout.flush()

    if os.fork() == 0:
        tried()
        del future, call
        sys.exit(0)
    os.wait()
    open("go", "w").close()
    future.result(60), call.result(60), list(results)
"""


def test_a_client_in_a_forked_child_is_an_error_at_once(script):
    process = script(FORKED)
    shown, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    lines = shown.splitlines()
    assert len(lines) == 12
    assert all(line.endswith(" ClusterError True") for line in lines), shown
    assert errors == ""


LOST = """
import gc
from tornado.util import TimeoutError
with session as client:
    def lose(error):
        client.loop.asyncio_loop.create_future().set_exception(error)
    for error in (TimeoutError("Timeout"), ValueError("of the script")):
        client.loop.asyncio_loop.call_soon_threadsafe(lose, error)
    client.submit(abs, 1, tag="a").result()
    gc.collect()
"""


def test_waits_that_the_end_of_a_session_cuts_off_are_not_reported(script):
    _, errors = script(LOST).communicate(timeout=60)
    assert "ValueError: of the script" in errors
    assert "Timeout" not in errors


def test_a_script_does_not_end_before_the_tasks_that_wait_for_others(script, tmp_path):
    process = script("""
    client = session.start()
    executor = client.executor(tag="a")
    future = executor.submit(abs, -1)
    future.add_done_callback(lambda _: time.sleep(0.2))  # the next one waits for it, too
    for _ in range(20):
        future = executor.submit(abs, future)
    executor.submit(os.mkdir, "reached", future)
    """)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert (tmp_path / "reached").exists(), errors
