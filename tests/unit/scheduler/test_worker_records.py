"""Records of workers: their states, names that get no work, and how long they are kept."""

import pytest

from scalable.protocol.operations import LEAVING_TOPIC
from scalable.scheduler import worker_removals
from scalable.scheduler.task_log import TaskLog
from scalable.scheduler.worker_records import Stage
from scalable.scheduler.worker_removals import WorkerRemovals
from unit.scheduler.test_task_log import FakeScheduler


class FakeDrain:
    def __init__(self, *facts):
        self.state, self.reason, self.cancels = "draining", facts[-1], True

    def cancel(self):
        return self.cancels


class Bed:
    """A scheduler whose workers connect and leave."""

    def __init__(self):
        self.scheduler = FakeScheduler()
        self.scheduler.stream_handlers["worker-status-change"] = lambda **_: None
        self.removals = WorkerRemovals(self.scheduler)
        self.records = self.removals.records

    def connect(self, name):
        """Connect a worker, and return whether it is drained at once."""
        self.scheduler.connect(f"tcp://{name}", name)
        return self.records.of(name).stage is Stage.DRAINING

    def lose(self, name, *, expected=True, stimulus="retire-workers-1", calls=()):
        message = {
            "action": "remove-worker", "worker": f"tcp://{name}", "expected": expected,
            "stimulus_id": stimulus, "processing-tasks": calls, "lost-computed-tasks": (),
        }  # fmt: skip
        TaskLog.of(self.scheduler).log_event("all", message)
        self.scheduler.remove(f"tcp://{name}")


@pytest.fixture
def bed(monkeypatch):
    monkeypatch.setattr(worker_removals, "Drain", FakeDrain)
    return Bed()


def test_a_withheld_worker_gets_no_work_until_it_has_left(bed):
    bed.records.withhold_work([["a-1"]])
    bed.scheduler.connect("tcp://a-1", "a-1")
    assert bed.records.get("a-1").stage is Stage.DRAINING
    bed.lose("a-1")
    assert not bed.connect("a-1")


def test_a_name_that_is_allowed_again_gets_work(bed):
    bed.records.withhold_work([["a-1"], ["a-2"]])
    bed.records.allow_work(["a-1"])
    assert not bed.connect("a-1")
    assert bed.connect("a-2")


def test_a_unit_with_a_connected_worker_is_left_as_it_is(bed):
    bed.connect("a-1-0")
    assert bed.records.withhold_work([["a-1-0", "a-1-1"], ["a-2"]]) == ["a-1-0"]
    assert not bed.connect("a-1-1")
    assert bed.connect("a-2")


def test_only_the_latest_records_are_kept(bed, monkeypatch):
    monkeypatch.setattr("scalable.scheduler.worker_records.KEPT_WORKERS", 3)
    for name in ("a-1", "a-2"):
        bed.connect(name)
    bed.lose("a-2", expected=False)
    bed.records.withhold_work([["a-3"]])
    bed.records.withhold_work([["a-4"], ["a-5"]])
    assert bed.records.get("a-2") is bed.records.at("tcp://a-2") is None
    assert all(map(bed.records.get, ("a-1", "a-3", "a-4", "a-5")))


def test_only_workers_that_crashed_are_not_dismissed(bed):
    for name in ("retired", "restarted", "nanny", "stuck", "crashed"):
        bed.connect(name)
    lost = {"expected": False, "stimulus": "handle-worker-cleanup-1"}
    log = TaskLog.of(bed.scheduler)
    bed.lose("retired")
    bed.lose("restarted", expected=False, stimulus="client-restart-1")
    bed.lose("nanny", **lost)
    log.log_event("all", {"action": "restart-workers", "workers": ["tcp://nanny"]})
    log.log_event(LEAVING_TOPIC, "tcp://stuck")
    bed.lose("stuck", **lost)
    bed.lose("crashed", **lost)
    asked = ("restarted", "nanny", "stuck", "crashed")
    views = {name: bed.records.get(name).view() for name in ("retired", *asked)}
    assert views.pop("crashed") == {}
    assert views == {name: {"dismissed_at": f"tcp://{name}"} for name in views}
    stages = {name: bed.records.get(name).stage for name in ("retired", *asked)}
    assert stages.pop("crashed") is Stage.LOST
    assert set(stages.values()) == {Stage.DISMISSED}


def test_a_worker_has_one_state_after_the_other(bed):
    bed.records.begin("a-1")
    record = bed.records.get("a-1")
    stages = [record.stage]
    bed.connect("a-1")
    stages.append(record.stage)
    bed.removals.drain({"a-1": "scale-down"})
    stages.append(record.stage)
    assert bed.removals.why(record.state) == "scale-down"
    assert bed.removals.resume(["a-1", "a-2"]) == ["a-1"]
    stages.append(record.stage)
    bed.lose("a-1", expected=False)
    stages.append(record.stage)
    assert stages == ["starting", "running", "draining", "running", "lost"]


def test_a_drain_that_is_too_late_to_cancel_goes_on(bed):
    bed.connect("a-1")
    bed.removals.drain({"a-1": "scale-down"})
    bed.records.get("a-1").drain.cancels = False
    assert bed.removals.resume(["a-1"]) == []
    assert bed.records.get("a-1").stage is Stage.DRAINING


def test_worker_lost_with_tasks_is_reported_until_its_name_starts_again(bed):
    for name, calls in (("a-1", ("call",)), ("a-2", ())):
        bed.connect(name)
        bed.lose(name, expected=False, stimulus="handle-worker-cleanup-1", calls=calls)
    views = [bed.records.get(name).view() for name in ("a-1", "a-2")]
    assert views == [{"lost_at_work": "tcp://a-1"}, {}]
    bed.records.allow_work(["a-1"])
    assert bed.records.get("a-1").view() == {}


def test_the_next_worker_at_the_same_address_is_not_dismissed(bed):
    bed.connect("a-1")
    bed.lose("a-1")
    bed.connect("a-1")
    assert not bed.records.get("a-1").dismissed_at


def test_an_earlier_process_is_known_by_its_address(bed):
    for number in range(3):
        bed.scheduler.connect(f"tcp://{number}", "a-1")
        bed.scheduler.remove(f"tcp://{number}")
    TaskLog.of(bed.scheduler).log_event(LEAVING_TOPIC, "tcp://1")
    assert bed.records.get("a-1").view() == {"dismissed_at": "tcp://1"}
    assert bed.records.at("tcp://0") is None


def test_a_worker_begins_once_under_its_name(bed):
    assert bed.records.begin("w0")
    assert not bed.records.begin("w0")
    assert bed.records.begin("w1")


def test_the_time_to_leave_is_noticed_once(bed, monkeypatch):
    times = []
    monkeypatch.setattr(FakeDrain, "leave_within", lambda _, s: times.append(s), raising=False)
    bed.connect("a-1")
    for left_s in (30.0, 20.0):
        bed.removals.notice("tcp://a-1", left_s, "spot capacity is needed")
    bed.removals.notice("tcp://other", 30.0, "unknown")
    record = bed.records.get("a-1")
    assert times == [30.0]
    assert (record.leaves, record.excused) == ("spot capacity is needed", True)
    assert record.dismissed_at == "tcp://a-1"
