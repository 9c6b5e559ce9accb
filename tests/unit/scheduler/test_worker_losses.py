"""What the loss of a worker means for its tasks: one decision, whoever reports the loss first."""

from types import SimpleNamespace

import pytest

from scalable.protocol.measured import BUNDLE_ANNOTATION
from scalable.protocol.operations import LEAVING_TOPIC
from scalable.scheduler import worker_losses
from scalable.scheduler.task_log import TaskLog
from scalable.scheduler.worker_losses import WorkerLosses
from unit.scheduler.test_task_log import FakeScheduler


class Task(SimpleNamespace):
    __hash__ = object.__hash__


class Bed:
    """A scheduler with one worker, ``a-1``, that has tasks."""

    def __init__(self, monkeypatch):
        self.scheduler, self.events, self.failed = FakeScheduler(), [], []
        self.scheduler.log_event = lambda *event: self.events.append(event)
        self.log = TaskLog.of(self.scheduler)
        self.losses = WorkerLosses.of(self.scheduler)
        fail = lambda _, task, error: self.failed.append((task.key, type(error).__name__))  # noqa: E731
        monkeypatch.setattr(worker_losses, "fail_ready_task", fail)
        monkeypatch.setattr(worker_losses, "send_to_client", lambda *told: self.events.append(told))

    def connect(self, *keys, **annotated):
        """Connect the worker, which has the given tasks; its thread runs the first."""
        worker = SimpleNamespace(
            name="a-1", address="tcp://a-1", executing={}, long_running=set(), nthreads=1,
            resources={"a": 1}, memory_limit=100, clean=lambda: "a-1", last_seen=0.0,
        )  # fmt: skip
        worker.processing = [self.task(key, worker, annotated.get(key)) for key in keys]
        self.scheduler.workers[worker.address] = worker
        self.log.add_worker(self.scheduler, worker.address)
        return worker

    def task(self, key, worker, annotations):
        given = vars(self.scheduler.add(key, annotations, {"a": 1}))
        given |= {"priority": (len(self.scheduler.tasks),), "processing_on": worker}
        given |= {"suspicious": 1, "who_wants": [SimpleNamespace(client_key="me")]}
        given |= {"state": "processing", "has_lost_dependencies": False}
        self.scheduler.tasks[key] = Task(**given)
        return self.scheduler.tasks[key]

    def lose(self, *, expected=False, computed=()):
        running = [task.key for task in self.scheduler.workers["tcp://a-1"].processing]
        message = {
            "action": "remove-worker", "worker": "tcp://a-1", "expected": expected,
            "stimulus_id": "x", "processing-tasks": running, "lost-computed-tasks": computed,
        }  # fmt: skip
        self.log.log_event("all", message)
        self.scheduler.remove("tcp://a-1")

    def again(self, key):
        call = self.log.call(key)
        return call.tries, None if call.again is None else str(call.again[0])


@pytest.fixture
def bed(monkeypatch):
    return Bed(monkeypatch)


@pytest.mark.parametrize(
    ("expected", "reason"), [(False, "worker lost"), (True, "worker left or was preempted")]
)
def test_tasks_that_had_begun_run_again(bed, expected, reason):
    bed.connect("first", "later")
    bed.scheduler.add("result")
    bed.lose(expected=expected, computed=["result"])
    assert bed.again("first") == (1, reason)
    assert bed.again("later") == (0, None)
    assert bed.again("result") == (1, "result lost")
    assert bed.log.call("later").lost_with == (() if expected else ("a-1",))
    assert bed.scheduler.tasks["first"].suspicious == 1


def test_a_bundle_returns_to_its_client_when_its_worker_leaves(bed):
    bed.connect("bundle", bundle={BUNDLE_ANNOTATION: {"calls": 3}})
    bed.lose(expected=True)
    ((_, client, message),) = bed.events
    assert (client, message["key"]) == ("me", "bundle")
    assert bed.scheduler.tasks["bundle"].has_lost_dependencies


@pytest.mark.parametrize("excused_first", [True, False])
def test_a_loss_is_excused_whoever_reports_it_first(bed, excused_first):
    bed.connect("call")
    if excused_first:
        bed.losses.excuse_losses(["a-1"])
    bed.lose()
    if not excused_first:
        bed.losses.excuse_losses(["a-1"])
    assert bed.scheduler.tasks["call"].suspicious == 0
    assert bed.again("call") == (1, "worker lost")


def test_a_loss_is_excused_once(bed):
    bed.connect("call")
    bed.scheduler.tasks["call"].suspicious = 3
    bed.lose()
    bed.losses.excuse_losses(["a-1"])
    bed.losses.excuse_losses(["a-1"])
    assert bed.scheduler.tasks["call"].suspicious == 2


def test_next_task_is_counted_when_none_runs(bed):
    bed.connect("next", "later")
    bed.losses.out_of_memory("tcp://a-1", [], 95, 100)
    assert [bed.log.call(key).too_large for key in ("next", "later")] == [1, 0]
    assert bed.events == [(LEAVING_TOPIC, "tcp://a-1")]


def test_worker_without_tasks_counts_nothing(bed):
    bed.connect()
    bed.losses.out_of_memory("tcp://a-1", [], 95, 100)
    assert bed.events == bed.failed == []


@pytest.mark.parametrize("reported", [True, False])
def test_end_is_counted_once_when_the_manager_reports_it_too(bed, reported):
    bed.connect("next", "later")
    if reported:
        bed.losses.out_of_memory("tcp://a-1", ["next"], 95, 100)
    bed.lose()
    bed.losses.ended_for_memory(["a-1"])
    assert [bed.log.call(key).too_large for key in ("next", "later")] == [1, 0]


def test_a_task_fails_the_second_time_and_a_bundle_at_once(bed):
    bed.connect("call", "bundle", bundle={BUNDLE_ANNOTATION: {"calls": 3}})
    for _ in range(2):
        bed.losses.out_of_memory("tcp://a-1", ["call", "bundle"], 95, 100)
    failed = [("bundle", "OutOfMemory"), ("call", "OutOfMemory"), ("bundle", "OutOfMemory")]
    assert bed.failed == failed
    assert "it ran out of memory" in bed.log.workers.get("a-1").reason.reason


def test_five_thousand_workers_that_vanish_at_once_are_all_excused(bed):
    names = [f"b-{number}" for number in range(5000)]
    for name in names:
        bed.scheduler.connect(f"tcp://{name}", name)
        bed.task(name, None, None)
        message = {
            "action": "remove-worker", "worker": f"tcp://{name}", "expected": False,
            "stimulus_id": "x", "processing-tasks": [name], "lost-computed-tasks": (),
        }  # fmt: skip
        bed.log.log_event("all", message)
        bed.scheduler.remove(f"tcp://{name}")
    bed.losses.excuse_losses(names)
    assert not any(task.suspicious for task in bed.scheduler.tasks.values())
