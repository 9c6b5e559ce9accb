"""Failed tasks that the scheduler has forgotten, found by a key, a task name or a key's beginning."""

import pytest

from scalable.scheduler.explaining import failed_tasks_named


def row(key, name, at, message="no", count=1):
    details = {"task_id": key, "task_name": name, "tag": "a", "worker": "a-1", "frame": "flow.py:3"}
    return {
        "failure_class": "ValueError",
        "message": message,
        "timestamp": at,
        "count": count,
        "details": details,
    }


ROWS = [
    row("simulate-2", "simulate", 90.0, "last", count=4),
    row("simulate_all-1", "simulate_all", 80.0),
    row("simulate-1", "simulate", 70.0, "first"),
    row("simulate", "other", 60.0, "its key is another's name"),
]


@pytest.mark.parametrize(("name", "count", "message"), [
    ("simulate-1", 1, "first"),
    ("simulate", 1, "its key is another's name"),
    ("simulate_all", 1, "no"),
    ("simulate-", 5, "last"),
])  # fmt: skip
def test_a_key_goes_before_a_task_name_and_that_before_a_beginning(name, count, message):
    found = failed_tasks_named(name, ROWS, now=100.0)
    assert (found.state, found.gone, found.count) == ("failed", True, count)
    assert found.failure.message == message


def test_the_newest_failure_of_a_task_stands_for_all():
    found = failed_tasks_named("simulate", ROWS[:-1], now=100.0)
    assert (found.count, found.since_s, found.key) == (5, 10.0, "simulate-2")
    assert (found.worker, found.failure.frame) == ("a-1", "flow.py:3")


def test_a_name_without_failures_means_none():
    assert failed_tasks_named("plot", ROWS, now=100.0) is None
