"""Workers that run out of memory before their tasks start count against the next tasks, once."""

from types import SimpleNamespace

import pytest

from scalable.protocol.operations import LEAVING_TOPIC
from scalable.scheduler import retrying


class Task:
    def __init__(self, key, number):
        self.key, self.priority, self.processing_on = key, (number,), None


@pytest.fixture
def losses(monkeypatch):
    """The reasons of losses, what they counted, and what they logged."""
    log = SimpleNamespace(listen=lambda _: None)
    monkeypatch.setattr(retrying.TaskLog, "of", lambda _: log)
    events, counted = [], []
    scheduler = SimpleNamespace(
        handlers={}, workers={}, tasks={}, log_event=lambda *event: events.append(event)
    )
    made = retrying.LossReasons(scheduler, SimpleNamespace())
    monkeypatch.setattr(made, "_again", lambda *_, **__: None)
    monkeypatch.setattr(made, "_count_try", lambda task, *_: counted.append(task.key))
    return made, counted, events


def connected(losses, *tasks):
    scheduler = losses._scheduler
    worker = SimpleNamespace(
        name="a-1", address="tcp://a-1", processing=tasks, executing={}, long_running=set(),
        nthreads=1, resources={"a": 1}, memory_limit=100, clean=lambda: "a-1",
    )  # fmt: skip
    scheduler.workers[worker.address] = worker
    for task in tasks:
        task.processing_on, scheduler.tasks[task.key] = worker, task
    losses.worker_added(worker)


def test_next_task_is_counted_when_none_runs(losses):
    losses, counted, events = losses
    connected(losses, Task("later", 2), Task("next", 1))
    losses.out_of_memory("tcp://a-1", [], 95, 100)
    assert counted == ["next"]
    assert events == [(LEAVING_TOPIC, "tcp://a-1")]


def test_worker_without_tasks_counts_nothing(losses):
    losses, counted, events = losses
    connected(losses)
    losses.out_of_memory("tcp://a-1", [], 95, 100)
    assert counted == events == []


@pytest.mark.parametrize("reported", [True, False])
def test_end_is_counted_once_when_the_manager_reports_it_too(losses, reported):
    losses, counted, _ = losses
    connected(losses, Task("next", 1))
    if reported:
        losses.out_of_memory("tcp://a-1", ["next"], 95, 100)
    lost = SimpleNamespace(address="tcp://a-1", expected=False, running=("next",))
    losses.worker_lost(lost)
    losses.ended_for_memory(["a-1"])
    assert counted == ["next"]
