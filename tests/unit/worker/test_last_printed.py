"""What a failed task has printed, without the lines of other tasks of its process."""

import io
from types import SimpleNamespace

import pytest

from scalable.protocol.task_output import TaskStream
from scalable.worker import task_output
from scalable.worker.task_output import KEPT_TASKS, LastPrinted


@pytest.fixture
def run(monkeypatch):
    """Make a task the one that runs here, perhaps at a position of a bundle."""

    def act(key, began=None):
        bundle = None if began is None else SimpleNamespace(began=began)
        monkeypatch.setattr(task_output, "current_call", lambda: key and (None, key))
        monkeypatch.setattr(task_output, "running_bundle", lambda _: bundle)

    return act


def test_output_is_that_of_the_task_here(run):
    printed = LastPrinted()
    for key in ("x", "y", None):
        run(key)
        printed.add(f"from {key}\n")
    assert printed.take() is None
    run("y")
    assert printed.take() == "from y"
    assert printed.take() is None
    run("silent")
    assert printed.take() is None
    run("x")
    printed.add("and more")
    assert printed.take() == "from x\nand more"


def test_tasks_of_a_bundle_are_kept_apart(run):
    printed = LastPrinted()
    run("bundle", 1.0)
    printed.add("first\n")
    run("bundle", 2.0)
    assert printed.take() is None
    printed.add("second\n")
    assert printed.take() == "second"


def test_output_of_few_tasks_is_kept(run):
    printed = LastPrinted()
    for number in range(2 * KEPT_TASKS):
        run(f"x-{number}")
        printed.add("line\n")
    assert printed.take() == "line"
    run("x-0")
    assert printed.take() is None
    assert len(printed._texts) <= KEPT_TASKS


def test_a_forked_child_prints_without_the_locks_of_its_parent(monkeypatch):
    printed = []
    stream = TaskStream(io.StringIO(), printed.append)
    stream.write("parent\n")
    monkeypatch.setattr("scalable.protocol.task_output.os.getpid", lambda: -1)
    stream.write("child\n")
    assert printed == ["parent\n"]
    assert stream.getvalue() == "parent\nchild\n"
