"""A session closes after a signal, and the next one removes what a killed one has left."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap

import pytest

HEAD = """
import os, signal, sys, threading, time
from scalable import ScalableSession

def work():
    threading.Event().wait()

def left(*_):
    print("own handler", flush=True)
    sys.exit(0)
"""


@pytest.fixture
def script(tmp_path, processes):
    """Start a script whose temporary directory is empty. It is killed at the end."""
    started, scratch = [], tmp_path / "tmp"
    scratch.mkdir(mode=0o700)
    head = f"{HEAD}session = ScalableSession.local({{'a': 1}}, processes={processes})\n"

    def start(body):
        process = subprocess.Popen(
            [sys.executable, "-c", head + body],
            cwd=tmp_path,
            env={**os.environ, "TMPDIR": str(scratch), "SCALABLE_TELEMETRY": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:  # and its forks
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=30)


OPEN = "client = session.start()\nprint('ready', flush=True)\n"
WAIT = "client.submit(work, tag='a').result()\n"
# Dask logs an error if the process exits while the scheduler reads a graph.
WAIT_READY = """\
future = client.submit(work, tag='a')
while not any(client.processing().values()):
    time.sleep(0.01)
print('ready', flush=True)
future.result()
"""
WITH = "with session as client:\n" + textwrap.indent(WAIT_READY, "    ")


@pytest.mark.parametrize(
    ("processes", "kind", "body"),
    [
        (True, signal.SIGTERM, WITH),
        (False, signal.SIGHUP, "client = session.start()\n" + WAIT_READY),
    ],
    ids=["processes", "threads"],
)
def test_a_signal_closes_a_session_as_an_interrupt_does(script, tmp_path, kind, body):
    process = script(body)
    assert process.stdout.readline() == "ready\n", process.stderr.read()
    process.send_signal(kind)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + kind
    assert errors == ""
    assert list((tmp_path / "tmp").iterdir()) == []
    (run,) = (tmp_path / ".scalable" / "runs").iterdir()
    record = json.loads((run / "run.json").read_text())
    assert (record["status"], record["exit_code"]) == ("cancelled", 128 + kind)


@pytest.mark.parametrize("processes", [False])
@pytest.mark.parametrize(
    ("body", "shown", "code"),
    [
        (f"signal.signal(signal.SIGTERM, left)\n{OPEN}{WAIT}", "own handler\n", 0),
        (
            (
                "other = threading.Thread(target=session.start)\nother.start()\nother.join()\n"
                "print('ready', flush=True)\nsignal.pause()\n"
            ),
            "",
            -signal.SIGTERM,
        ),
        (
            "session.start()\nsession.close()\nprint('ready', flush=True)\nsignal.pause()\n",
            "",
            -signal.SIGTERM,
        ),
        (
            (
                f"{OPEN}child = os.fork()\nif child == 0:\n    signal.pause()\n"
                "os.kill(child, signal.SIGTERM)\n"
                "print(os.waitstatus_to_exitcode(os.wait()[1]))\n"
            ),
            "-15\n",
            0,
        ),
    ],
    ids=["own handler", "another thread", "closed", "fork"],
)
def test_a_signal_that_no_open_session_handles_is_as_before(script, body, shown, code):
    process = script(body)
    assert process.stdout.readline() == "ready\n", process.stderr.read()
    if "fork" not in body:
        process.send_signal(signal.SIGTERM)
    rest, errors = process.communicate(timeout=60)
    assert (rest, process.returncode) == (shown, code), errors


@pytest.mark.parametrize(
    ("processes", "ending"),
    [(True, "os.kill(os.getpid(), signal.SIGKILL)"), (False, "os._exit(3)")],
)
def test_the_next_session_removes_what_a_killed_one_has_left(
    script, tmp_path, eventually, processes, ending
):
    process = script(f"{OPEN}client.submit(abs, 1, tag='a').result()\n{ending}\n")
    process.communicate(timeout=60)
    scratch = tmp_path / "tmp"
    assert list(scratch.glob("scalable-node-*"))
    if processes:  # workers stop themselves, and remove their directories
        eventually(lambda: not [p for p in scratch.iterdir() if "-node-" not in p.name])
    other = script("with session as client:\n    print(client.submit(abs, -2, tag='a').result())\n")
    shown, errors = other.communicate(timeout=60)
    assert (shown, errors) == ("2\n", "")
    assert list(scratch.iterdir()) == []
