"""Calls of the clients of a night: each leaves its number and the process in which it ran."""

import os
import signal
import time
from pathlib import Path

from distributed import get_client

MARKS, KILLED, PARENTS = "marks", "killed", "parents"


class ExpectedError(Exception):
    """The exception of tasks that fail."""


def note(directory, name, *values):
    """Add a line to a file, whole also beside others that write."""
    with (Path(directory) / name).open("a") as lines:
        lines.write(" ".join(map(str, values)) + "\n")


def leaf(directory, number, seconds=0.0):
    """Leave a mark."""
    time.sleep(seconds)
    note(directory, MARKS, number, os.getpid())
    return number


def fail(directory, number):
    """Leave a mark, and fail."""
    leaf(directory, number)
    raise ExpectedError(number)


def kill_once(directory, number):
    """Kill the worker at the first try; leave a mark at the second."""
    first = Path(directory) / f"first-{number}"
    if not first.exists():
        first.touch()
        note(directory, KILLED, os.getpid())
        os.kill(os.getpid(), signal.SIGKILL)
    return leaf(directory, number)


def parent(directory, number, others):
    """Make further calls, and wait for them; leave a mark. Tell of each try before its calls."""
    note(directory, PARENTS, os.getpid(), *others)
    client = get_client()
    futures = [client.submit(leaf, directory, other, tag="b") for other in others]
    assert client.gather(futures) == others
    return leaf(directory, number)
