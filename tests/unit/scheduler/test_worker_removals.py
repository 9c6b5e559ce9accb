"""Workers that get no work, and how long their names are remembered."""

from types import SimpleNamespace

import pytest

from scalable.protocol.operations import LEAVING_TOPIC
from scalable.scheduler.worker_removals import WorkerRemovals


@pytest.fixture
def removals():
    handlers = {"worker-status-change": lambda **_: None}
    return WorkerRemovals(SimpleNamespace(workers={}, stream_handlers=handlers))


def connect(removals, name, monkeypatch):
    """Connect a worker, and return whether it is drained at once."""
    drained = []
    monkeypatch.setattr(removals, "drain", drained.extend)
    removals.connected(SimpleNamespace(name=name, address=f"tcp://{name}"))
    return drained == [name]


def leave(removals, name, *, expected=True, stimulus="retire-workers-1", calls=()):
    removals.log_event(
        "all",
        {
            "action": "remove-worker", "worker": f"tcp://{name}", "expected": expected,
            "stimulus_id": stimulus, "processing-tasks": calls, "lost-computed-tasks": (),
        },
    )  # fmt: skip


def test_a_withheld_worker_gets_no_work_until_it_has_left(removals, monkeypatch):
    removals.withhold_work([["a-1"]])
    assert connect(removals, "a-1", monkeypatch)
    leave(removals, "a-1")
    assert not connect(removals, "a-1", monkeypatch)


def test_a_name_that_is_allowed_again_gets_work(removals, monkeypatch):
    removals.withhold_work([["a-1"], ["a-2"]])
    removals.allow_work(["a-1"])
    assert not connect(removals, "a-1", monkeypatch)
    assert connect(removals, "a-2", monkeypatch)


def test_a_unit_with_a_connected_worker_is_left_as_it_is(removals, monkeypatch):
    present = SimpleNamespace(name="a-1-0", address="tcp://a-1-0")
    removals.scheduler.workers = {present.address: present}
    assert removals.withhold_work([["a-1-0", "a-1-1"], ["a-2"]]) == ["a-1-0"]
    assert not connect(removals, "a-1-1", monkeypatch)
    assert connect(removals, "a-2", monkeypatch)


def test_only_the_latest_names_are_remembered(removals, monkeypatch):
    monkeypatch.setattr("scalable.scheduler.worker_removals.MOST_WITHHELD", 3)
    removals.withhold_work([["a-1"], ["a-2"]])
    removals.withhold_work([["a-3", "a-4"]])
    assert not connect(removals, "a-1", monkeypatch)
    assert all(connect(removals, name, monkeypatch) for name in ("a-2", "a-3", "a-4"))


def test_only_workers_that_crashed_are_not_dismissed(removals, monkeypatch):
    for name in ("retired", "restarted", "nanny", "stuck", "crashed"):
        connect(removals, name, monkeypatch)
    lost = {"expected": False, "stimulus": "handle-worker-cleanup-1"}
    leave(removals, "retired")
    leave(removals, "restarted", expected=False, stimulus="client-restart-1")
    leave(removals, "nanny", **lost)
    removals.log_event("all", {"action": "restart-workers", "workers": ["tcp://nanny"]})
    removals.log_event(LEAVING_TOPIC, "tcp://stuck")
    leave(removals, "stuck", **lost)
    leave(removals, "crashed", **lost)
    asked = ("restarted", "nanny", "stuck", "crashed")
    assert removals.dismissed(asked) == {n: f"tcp://{n}" for n in asked[:3]}
    assert removals.dismissed(["retired"])


def test_worker_lost_with_tasks_is_reported_until_its_name_starts_again(removals, monkeypatch):
    for name, calls in (("a-1", ("call",)), ("a-2", ())):
        connect(removals, name, monkeypatch)
        leave(removals, name, expected=False, stimulus="handle-worker-cleanup-1", calls=calls)
    assert removals.lost_at_work(["a-1", "a-2", "a-3"]) == {"a-1": "tcp://a-1"}
    removals.allow_work(["a-1"])
    assert removals.lost_at_work(["a-1"]) == {}


@pytest.mark.parametrize("excused_first", [True, False])
def test_a_loss_is_excused_whoever_hears_of_it_first(removals, monkeypatch, excused_first):
    task = SimpleNamespace(suspicious=1)
    removals.scheduler.tasks = {"call": task}
    connect(removals, "a-1", monkeypatch)
    if excused_first:
        removals.excuse_losses(["a-1"])
    leave(removals, "a-1", expected=False, calls=("call",))
    if not excused_first:
        removals.excuse_losses(["a-1"])
    assert task.suspicious == 0


def test_the_next_worker_at_the_same_address_is_not_dismissed(removals, monkeypatch):
    connect(removals, "a-1", monkeypatch)
    leave(removals, "a-1")
    connect(removals, "a-1", monkeypatch)
    assert removals.dismissed(["a-1"]) == {}


def test_a_worker_begins_once_under_its_name(removals, monkeypatch):
    assert removals.begin("w0")
    assert not removals.begin("w0")
    monkeypatch.setattr("scalable.scheduler.worker_removals.MOST_BEGUN", 2)
    assert all(removals.begin(f"w{number}") for number in range(1, 4))
    assert len(removals._begun) == 2


def test_five_thousand_workers_that_vanish_at_once_are_all_excused(removals, monkeypatch):
    names = [f"a-{number}" for number in range(5000)]
    for name in names:
        connect(removals, name, monkeypatch)
        leave(removals, name, expected=False, stimulus="handle-worker-cleanup-1", calls=(name,))
    excused = []
    monkeypatch.setattr(removals, "_excuse", lambda name, calls: excused.append((name, *calls)))
    removals.excuse_losses(names)
    assert excused == [(name, name) for name in names]
