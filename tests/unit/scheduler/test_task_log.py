"""Events of the ledger: each transition of a task is told once, to every listener."""

import asyncio
import json
import logging
import pickle
from types import SimpleNamespace

import pytest

from scalable.protocol.failures import error_text
from scalable.protocol.measured import TASK_ANNOTATION, USAGE, addition
from scalable.protocol.operations import PROFILES
from scalable.scheduler import recorder as recorders
from scalable.scheduler import task_log
from scalable.scheduler.recorder import Recorder
from scalable.scheduler.task_log import EVENTS, Listener, Profiles, TaskLog


class FakeScheduler:
    """Tasks, workers and plug-ins of a scheduler, changed by hand."""

    def __init__(self):
        self.tasks, self.workers, self.plugins, self.handlers = {}, {}, {}, {}
        self.metadata = []

    def add_plugin(self, plugin):
        self.plugins[plugin.name] = plugin

    def set_metadata(self, keys, value):
        self.metadata.append((keys, value))

    def add(self, key, annotations=None, resources=None):
        task = SimpleNamespace(
            key=key,
            prefix=SimpleNamespace(name="run"),
            annotations=annotations,
            resource_restrictions=resources,
            dependencies=set(),
            nbytes=-1,
            state="released",
            exception_blame=None,
        )
        self.tasks[key] = task
        return task

    def move(self, key, *states, **details):
        """Change the state of a task step by step; the details come with the last step."""
        ledger = TaskLog.of(self)
        for number, state in enumerate(states, 1):
            task = self.tasks[key]
            start, task.state = task.state, state
            given = details if number == len(states) else {}
            ledger.transition(key, start, state, stimulus_id="x", **given)
        if task.state == "forgotten":
            del self.tasks[key]

    def send(self, *keys):
        TaskLog.of(self).update_graph(self, tasks=keys)

    def connect(self, address, name, **resources):
        worker = SimpleNamespace(
            address=address, name=name, resources=resources, nthreads=1, executing={},
            long_running=set(), host="a", extra={},
        )  # fmt: skip
        self.workers[address] = worker
        TaskLog.of(self).add_worker(self, address)

    def remove(self, address):
        self.workers.pop(address)
        TaskLog.of(self).remove_worker(self, address, stimulus_id="x")


def noting(event):
    return lambda self, subject: self.told.append((event, subject))


class Notes(Listener):
    """Every event, with its subject."""

    def __init__(self):
        self.told = []

    locals().update({event: noting(event) for event in EVENTS})

    def names(self):
        told, self.told = self.told, []
        return [event for event, _ in told]


class Rows(dict):
    """Rows of a run by stream, decoded."""

    def extend(self, stream, rows):
        decoded = (json.loads(row) if isinstance(row, str) else row for row in rows)
        self.setdefault(stream, []).extend(decoded)


@pytest.fixture
def scheduler():
    return FakeScheduler()


@pytest.fixture
def notes(scheduler):
    notes = Notes()
    TaskLog.of(scheduler).listen(notes)
    return notes


def startstops(began=100.0, ended=102.0):
    return [
        {"action": "transfer", "start": 99.0, "stop": 99.5},
        {"action": "compute", "start": began, "stop": ended},
        addition(USAGE, {"cpu_s": 1.5, "peak_memory": 2**20}),
    ]


WAYS = {
    "succeeds": (
        ["waiting", "processing", "memory", "released", "forgotten"],
        ["waiting", "ready", "ended", "forgotten"],
    ),
    "fails": (
        ["waiting", "processing", "erred", "released", "forgotten"],
        ["waiting", "ready", "ended", "forgotten"],
    ),
    "is queued": (
        ["waiting", "queued", "processing", "memory"],
        ["waiting", "ready", "dequeued", "ended"],
    ),
    "has no worker": (
        ["waiting", "no-worker", "processing", "memory"],
        ["waiting", "ready", "ended"],
    ),
    "is lost and runs again": (
        ["waiting", "processing", "released", "waiting", "processing", "memory"],
        ["waiting", "ready", "left", "waiting", "ready", "ended"],
    ),
    "loses its result and runs again": (
        ["waiting", "processing", "memory", "released", "waiting", "processing", "memory"],
        ["waiting", "ready", "ended", "waiting", "ready", "ended"],
    ),
    "is cancelled while it waits": (
        ["waiting", "released", "forgotten"],
        ["waiting", "left", "forgotten"],
    ),
    "is computed elsewhere": (["waiting", "memory"], ["waiting", "left"]),
    "fails because another failed": (["waiting", "erred"], ["waiting", "ended"]),
}


@pytest.mark.parametrize("way", WAYS)
def test_each_transition_is_told_once(scheduler, notes, way):
    states, events = WAYS[way]
    scheduler.add("x")
    scheduler.move("x", *states)
    assert notes.names() == events


def test_every_listener_is_told_once_although_it_listens_twice(scheduler, notes):
    other = Notes()
    ledger = TaskLog.of(scheduler)
    ledger.listen(other)
    ledger.listen(notes)
    scheduler.add("x")
    scheduler.move("x", "waiting", "processing", "memory")
    assert notes.names() == other.names() == ["waiting", "ready", "ended"]
    assert list(scheduler.plugins.values()) == [ledger]


def test_a_listener_that_raises_keeps_no_event_from_the_others(scheduler, caplog):
    class Broken(Listener):
        def waiting(self, call):
            raise LookupError(call.key)

    notes = Notes()
    TaskLog.of(scheduler).listen(Broken())
    TaskLog.of(scheduler).listen(notes)
    scheduler.add("x")
    with caplog.at_level(logging.INFO, "scalable.scheduler"):
        scheduler.move("x", "waiting", "processing")
    assert notes.names() == ["waiting", "ready"]
    assert "LookupError: x" in caplog.text


@pytest.mark.parametrize(("details", "failure"), [
    ({"exception_text": "ValueError('no')"}, ("ValueError", "no")),
    ({"exception_text": error_text(KeyError("lat"))}, ("KeyError", "'lat'")),
    ({"exception_text": error_text(ValueError())}, ("ValueError", "ValueError")),
    ({"exception_text": "Odd(1, 2)"}, ("Odd", "1, 2")),
    ({"exception_text": "Empty()"}, ("Empty", "Empty")),
    ({"exception": pickle.dumps(LookupError("x"))}, ("LookupError", "x")),
    ({"exception": object()}, ("Exception", "no message")),
])  # fmt: skip
def test_a_failure_has_a_class_and_a_message(scheduler, notes, details, failure):
    scheduler.add("x")
    scheduler.move("x", "waiting", "processing", "erred", **details)
    _, end = notes.told[-1]
    assert end.failure() == failure


def test_annotations_of_a_task_that_is_sent_again_count(scheduler, notes):
    task = scheduler.add("x", {TASK_ANNOTATION: "first"})
    scheduler.send("x")
    task.annotations = {TASK_ANNOTATION: "second"}
    scheduler.send("x")
    scheduler.move("x", "waiting")
    assert [subject.name for event, subject in notes.told if event == "waiting"] == ["second"]


def test_nothing_is_kept_of_calls_that_are_forgotten_or_dropped_by_a_restart(scheduler, notes):
    ledger = TaskLog.of(scheduler)
    for key in "xy":
        scheduler.add(key)
        scheduler.send(key)
        scheduler.move(key, "waiting", "processing", "memory")
    scheduler.move("x", "released", "forgotten")
    assert list(ledger._calls) == ["y"]
    scheduler.tasks.clear()
    ledger.restart(scheduler)
    assert not ledger._calls
    assert notes.names()[-1] == "restarted"


# Listeners ----------------------------------------------------------------------------------------


@pytest.fixture
def rows():
    return Rows()


@pytest.fixture
def recorder(scheduler, rows):
    recorder = Recorder(scheduler, rows, ["a"])
    TaskLog.of(scheduler).listen(recorder)
    return recorder


def test_many_rows_are_written_before_it_is_time_in_parts(scheduler, recorder, rows, monkeypatch):
    sizes = []
    extend = rows.extend
    monkeypatch.setattr(
        rows, "extend", lambda name, new: (sizes.append(len(new)), extend(name, new))
    )
    monkeypatch.setattr("scalable.scheduler.recorder.MOST_LINES", 10)
    keys = [f"x-{number}" for number in range(35)]
    for key in keys:
        scheduler.add(key)
    scheduler.send(*keys)
    assert sizes == [10, 10, 10]
    for key in keys:
        scheduler.move(key, "waiting", "processing", "memory", startstops=startstops())
    recorder.flush()
    assert max(sizes) <= 10 + 2
    states = ("submitted", "running", "succeeded")
    for state in states:
        assert [r["task_id"] for r in rows["tasks"] if r["state"] == state] == keys
    assert len(rows["tasks"]) == len(keys) * len(states)


def test_profiles_are_dropped_and_announced_anew_when_the_scheduler_starts(scheduler):
    profiles = Profiles(scheduler)
    TaskLog.of(scheduler).listen(profiles)
    scheduler.add("x")
    scheduler.move("x", "waiting", "processing", "memory", startstops=startstops())
    assert profiles.profile("x") is not None
    TaskLog.of(scheduler).restart(scheduler)
    assert profiles.profile("x") is None
    assert scheduler.metadata == [([PROFILES], True)]
    asyncio.run(TaskLog.of(scheduler).start(scheduler))
    assert len(scheduler.metadata) == 2


def test_time_in_the_queue_counts_as_queued(scheduler, recorder, rows, monkeypatch):
    times = iter([10.0, 40.0, 50.0])
    clock = SimpleNamespace(time=lambda: next(times))
    monkeypatch.setattr(task_log, "time", clock)
    monkeypatch.setattr(recorders, "time", clock)
    scheduler.add("x")
    scheduler.send("x")
    scheduler.move("x", "waiting", "queued", "processing", "memory", startstops=startstops())
    recorder.flush()
    assert rows["tasks"][-1]["queued_s"] == 100.0 - 10.0 - 0.5


def managed(event, worker="a-0"):
    return {"stream": "workers", "event": event, "worker": worker, "tag": "a"}


@pytest.mark.parametrize("first", ["manager", "scheduler"])
def test_a_managers_row_of_a_workers_end_is_the_only_one(scheduler, recorder, rows, first):
    recorder.event(managed("requested"))
    scheduler.connect("tcp://1", "a-0", a=1)
    scheduler.remove("tcp://1")  # its nanny starts it anew
    scheduler.connect("tcp://2", "a-0", a=1)
    if first == "manager":
        recorder.event(managed("removed"))
        scheduler.remove("tcp://2")
    else:
        scheduler.remove("tcp://2")
        recorder.event(managed("removed"))
    assert [row["event"] for row in rows["workers"]].count("removed") == 1
    assert not recorder._managed
    assert not recorder._workers


def test_the_end_of_a_worker_without_manager_has_a_row(scheduler, recorder, rows):
    scheduler.connect("tcp://1", "one", a=1)
    scheduler.remove("tcp://1")
    assert [row["event"] for row in rows["workers"]] == ["started", "removed"]
    assert not recorder._workers


def test_the_recorder_does_not_keep_the_call_that_ended_last_with_all_calls_of_its_graph(
    scheduler, recorder
):
    for key in ("first", "last"):
        scheduler.add(key)
        scheduler.send(key)
        scheduler.move(key, "waiting", "processing", "memory", startstops=startstops())
    scheduler.move("first", "released", "forgotten")
    assert recorder._last_ended is scheduler.tasks["last"]
    scheduler.move("last", "released", "forgotten")
    assert recorder._last_ended is None
