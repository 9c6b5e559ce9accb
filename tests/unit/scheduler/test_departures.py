"""Workers that get no work, and how long their names are remembered."""

from types import SimpleNamespace

import pytest

from scalable.protocol.operations import LEAVING_TOPIC
from scalable.scheduler.departures import Departures


@pytest.fixture
def departures():
    handlers = {"worker-status-change": lambda **_: None}
    return Departures(SimpleNamespace(workers={}, stream_handlers=handlers))


def connect(departures, name, monkeypatch):
    """Connect a worker, and return whether it is drained at once."""
    drained = []
    monkeypatch.setattr(departures, "drain", drained.extend)
    departures.connected(SimpleNamespace(name=name, address=f"tcp://{name}"))
    return drained == [name]


def leave(departures, name, *, expected=True, stimulus="retire-workers-1", calls=()):
    departures.log_event(
        "all",
        {
            "action": "remove-worker",
            "worker": f"tcp://{name}",
            "expected": expected,
            "stimulus_id": stimulus,
            "processing-tasks": calls,
            "lost-computed-tasks": (),
        },
    )


def test_a_withheld_worker_gets_no_work_until_it_has_left(departures, monkeypatch):
    departures.withhold_work([["a-1"]])
    assert connect(departures, "a-1", monkeypatch)
    leave(departures, "a-1")
    assert not connect(departures, "a-1", monkeypatch)


def test_a_name_that_is_allowed_again_gets_work(departures, monkeypatch):
    departures.withhold_work([["a-1"], ["a-2"]])
    departures.allow_work(["a-1"])
    assert not connect(departures, "a-1", monkeypatch)
    assert connect(departures, "a-2", monkeypatch)


def test_a_unit_with_a_connected_worker_is_left_as_it_is(departures, monkeypatch):
    present = SimpleNamespace(name="a-1-0", address="tcp://a-1-0")
    departures.scheduler.workers = {present.address: present}
    assert departures.withhold_work([["a-1-0", "a-1-1"], ["a-2"]]) == ["a-1-0"]
    assert not connect(departures, "a-1-1", monkeypatch)
    assert connect(departures, "a-2", monkeypatch)


def test_only_the_latest_names_are_remembered(departures, monkeypatch):
    monkeypatch.setattr("scalable.scheduler.departures.MOST_WITHHELD", 3)
    departures.withhold_work([["a-1"], ["a-2"]])
    departures.withhold_work([["a-3", "a-4"]])
    assert not connect(departures, "a-1", monkeypatch)
    assert all(connect(departures, name, monkeypatch) for name in ("a-2", "a-3", "a-4"))


def test_only_workers_that_crashed_are_not_dismissed(departures, monkeypatch):
    for name in ("retired", "restarted", "nanny", "stuck", "crashed"):
        connect(departures, name, monkeypatch)
    lost = {"expected": False, "stimulus": "handle-worker-cleanup-1"}
    leave(departures, "retired")
    leave(departures, "restarted", expected=False, stimulus="client-restart-1")
    leave(departures, "nanny", **lost)
    departures.log_event("all", {"action": "restart-workers", "workers": ["tcp://nanny"]})
    departures.log_event(LEAVING_TOPIC, "tcp://stuck")
    leave(departures, "stuck", **lost)
    leave(departures, "crashed", **lost)
    asked = ("restarted", "nanny", "stuck", "crashed")
    assert departures.dismissed(asked) == {n: f"tcp://{n}" for n in asked[:3]}
    assert departures.dismissed(["retired"])


@pytest.mark.parametrize("excused_first", [True, False])
def test_a_loss_is_excused_whoever_hears_of_it_first(departures, monkeypatch, excused_first):
    task = SimpleNamespace(suspicious=1)
    departures.scheduler.tasks = {"call": task}
    connect(departures, "a-1", monkeypatch)
    if excused_first:
        departures.excuse_losses(["a-1"])
    leave(departures, "a-1", expected=False, calls=("call",))
    if not excused_first:
        departures.excuse_losses(["a-1"])
    assert task.suspicious == 0


def test_the_next_worker_at_the_same_address_is_not_dismissed(departures, monkeypatch):
    connect(departures, "a-1", monkeypatch)
    leave(departures, "a-1")
    connect(departures, "a-1", monkeypatch)
    assert departures.dismissed(["a-1"]) == {}


def test_a_worker_begins_once_under_its_name(departures, monkeypatch):
    assert departures.begin("w0")
    assert not departures.begin("w0")
    monkeypatch.setattr("scalable.scheduler.departures.MOST_BEGUN", 2)
    assert all(departures.begin(f"w{number}") for number in range(1, 4))
    assert len(departures._begun) == 2


def test_five_thousand_workers_that_vanish_at_once_are_all_excused(departures, monkeypatch):
    names = [f"a-{number}" for number in range(5000)]
    for name in names:
        connect(departures, name, monkeypatch)
        leave(departures, name, expected=False, stimulus="handle-worker-cleanup-1", calls=(name,))
    excused = []
    monkeypatch.setattr(departures, "_excuse", lambda name, calls: excused.append((name, *calls)))
    departures.excuse_losses(names)
    assert excused == [(name, name) for name in names]
