"""Events of the ledger: each transition of a task is told once, to every listener."""

import json
import logging
import pickle
from types import SimpleNamespace

import pytest

from scalable.protocol.failures import error_text
from scalable.protocol.measured import TASK_ANNOTATION, USAGE, addition
from scalable.scheduler import recorder as recorders
from scalable.scheduler import task_log
from scalable.scheduler.recorder import Recorder
from scalable.scheduler.task_log import EVENTS, Listener, TaskLog


class FakeScheduler:
    """Tasks, workers and plug-ins of a scheduler, changed by hand."""

    def __init__(self):
        self.tasks, self.workers, self.plugins, self.handlers = {}, {}, {}, {}
        self.metadata, self.stream_handlers, self.client_comms = [], {}, {}
        self.allowed_failures = 3

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
            long_running=set(), host="a", extra={}, memory_limit=0, processing=(),
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
        ["waiting", "ready", "ready", "ended"],
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
    scheduler.move("x", "waiting", "processing")
    assert [subject.name for event, subject in notes.told if event == "ready"] == ["second"]


def test_a_graph_is_told_by_name_and_resources(scheduler, notes):
    for number, resources in enumerate([{"a": 1}, {"b": 1}, {"a": 2}, {"a": 1, "b": 1}, None]):
        for name in ("fit", "score"):
            scheduler.add(f"{name}-{number}", {TASK_ANNOTATION: name}, resources)
    scheduler.send(*scheduler.tasks)
    told = {
        (calls[0].name, tuple(call.key[-1] for call in calls))
        for event, calls in notes.told
        if event == "submitted"
    }
    keys = [("0", "2"), ("1",), ("3",), ("4",)]
    assert told == {(name, those) for name in ("fit", "score") for those in keys}


def test_a_submitted_task_is_told_as_waiting_only_when_it_waits_again(scheduler, notes):
    scheduler.add("x")
    scheduler.send("x")
    scheduler.move("x", "waiting")
    assert notes.names() == ["submitted"]
    scheduler.move("x", "released", "waiting")
    assert notes.names() == ["left", "waiting"]
    scheduler.move("x", "processing", "released", "waiting")
    assert notes.names() == ["ready", "left", "waiting"]
    scheduler.add("found")
    scheduler.move("found", "waiting")
    assert notes.names() == ["waiting"]


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
    assert notes.names()[-1] == "forgotten"


# Listeners ----------------------------------------------------------------------------------------


@pytest.fixture
def rows():
    return Rows()


@pytest.fixture
def recorder(scheduler, rows):
    return Recorder(scheduler, rows, ["a"])


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


def test_profiles_are_dropped_when_the_scheduler_starts(scheduler):
    log = TaskLog.of(scheduler)
    scheduler.add("x")
    scheduler.move("x", "waiting", "processing", "memory", startstops=startstops())
    assert log.profile("x") is not None
    log.restart(scheduler)
    assert log.profile("x") is None


def test_only_the_latest_forgotten_tasks_are_kept(scheduler, monkeypatch):
    monkeypatch.setattr(task_log, "KEPT_ENDED", 2)
    log = TaskLog.of(scheduler)
    for key in "xyz":
        scheduler.add(key)
        states = "waiting", "processing", "memory"
        scheduler.move(key, *states, startstops=startstops(), worker="tcp://1")
        scheduler.move(key, "released", "forgotten")
    assert log.profile("x") is None
    assert log.profile("z")["duration_s"] == 2.0


def test_the_reason_of_a_repetition_is_known_after_it_was_recorded(scheduler, recorder):
    scheduler.add("x")
    scheduler.send("x")
    scheduler.move("x", "waiting", "processing", "erred", "released", "waiting", "processing")
    call = TaskLog.of(scheduler).call("x")
    assert (call.again, call.repeated) == (None, ("retried by the user", None))


def test_submitted_again_a_task_keeps_its_attempts(scheduler):
    scheduler.add("x")
    scheduler.send("x")
    TaskLog.of(scheduler).call("x").tries = 3
    scheduler.send("x")
    assert TaskLog.of(scheduler).call("x").tries == 3


def test_a_task_has_its_parent_until_it_is_forgotten(scheduler):
    log = TaskLog.of(scheduler)
    for key in ("parent", "child", "other"):
        scheduler.add(key)
    log.nest("parent", ["parent", "child", "other", "unknown"])
    log.nest("other", ["child"])
    assert log.call("child").parent == "parent"
    assert list(log.call("parent").children) == ["child", "other"]
    scheduler.move("child", "waiting", "processing", "memory", "released", "forgotten")
    assert list(log.call("parent").children) == ["other"]


def test_time_in_the_queue_counts_as_queued(scheduler, recorder, rows, monkeypatch):
    times = iter([10.0, 40.0, 50.0])
    clock = SimpleNamespace(time=lambda: next(times))
    monkeypatch.setattr(task_log, "time", clock)
    monkeypatch.setattr(recorders, "time", clock)
    scheduler.add("x")
    scheduler.send("x")
    scheduler.move("x", "waiting", "queued", "processing", "memory", startstops=startstops())
    recorder.flush()
    queued_s = 100.0 - 40.0 - 0.5  # since it was ready, not since it was submitted
    assert rows["tasks"][-1]["queued_s"] == queued_s
    assert TaskLog.of(scheduler).profile("x")["queued_s"] == queued_s


class TaskOfHeartbeat:
    """A task that Dask's scheduler has forgotten, as a key of a worker's ``executing``."""

    key, processing_on = "x", None


def test_a_heartbeat_may_name_a_task_that_was_forgotten_since(scheduler, recorder, rows):
    scheduler.connect("tcp://1", "a-0", a=1)
    scheduler.workers["tcp://1"].executing = {TaskOfHeartbeat(): 1.0}
    recorder._mark_running()
    recorder.flush()
    assert "tasks" not in rows


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
    assert TaskLog.of(scheduler).workers.of("a-0").managed is None


def test_the_end_of_a_worker_without_manager_has_a_row(scheduler, recorder, rows):
    scheduler.connect("tcp://1", "one", a=1)
    scheduler.remove("tcp://1")
    assert [row["event"] for row in rows["workers"]] == ["started", "removed"]


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
