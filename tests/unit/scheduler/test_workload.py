"""What pools have to do, as it is counted."""

from types import SimpleNamespace

import pytest

from scalable.model.cache_outcomes import CacheOutcome, OutcomeKind
from scalable.protocol.measured import USAGE, addition, cache_addition
from scalable.protocol.operations import KNOWN_ANNOTATION
from scalable.scaling.task_model import Kind as TaskKind
from scalable.scaling.task_model import Sample, TaskModel, size_bucket
from scalable.scheduler.adaptation import Workload
from scalable.scheduler.cluster_state import Starts
from scalable.scheduler.task_log import TaskLog, running_tasks


class Task(SimpleNamespace):
    """As the scheduler's: only itself is equal to it."""

    __hash__ = object.__hash__
    __eq__ = object.__eq__


class Calls:
    """Calls of a scheduler, moved by hand."""

    def __init__(self):
        plugins = {}
        add = {"add_plugin": lambda plugin: plugins.update({plugin.name: plugin})}
        self.scheduler = SimpleNamespace(tasks={}, workers={}, plugins=plugins, **add)
        self.workload = Workload(self.scheduler)
        self.ledger = TaskLog.of(self.scheduler)

    def add(self, key, name="run", tag="a", slots=1, needs=(), submitted=False):
        self.scheduler.tasks[key] = Task(
            key=key,
            prefix=SimpleNamespace(name=name),
            annotations={},
            resource_restrictions={tag: slots} if tag else None,
            dependencies={self.scheduler.tasks[other] for other in needs},
            waiting_on=set(),
            nbytes=-1,
            state="released",
            processing_on=None,
            exception_blame=None,
            priority=(len(self.scheduler.tasks),),
        )
        if submitted:
            self.submit(key)
        self.move(key, "waiting")

    def submit(self, key):
        self.ledger.update_graph(self.scheduler, tasks=[key])

    def move(self, *keys_and_state, **details):
        *keys, state = keys_and_state
        for key in keys:
            task = self.scheduler.tasks[key]
            start, task.state = task.state, state
            self.ledger.transition(key, start, state, stimulus_id="x", **details)


@pytest.fixture
def calls():
    return Calls()


def ran(seconds, memory=None):
    parts = [{"action": "compute", "start": 100.0, "stop": 100.0 + seconds}]
    return {"startstops": [*parts, addition(USAGE, {"cpu_s": 0, "peak_memory": memory})]}


RUN = TaskKind("a", "run", size_bucket(0))


def test_ended_calls_teach_durations_and_failed_calls_do_not(calls):
    for key in ("x", "y", "z", "hit", "known"):
        calls.add(key)
    calls.move("x", "y", "z", "hit", "processing")
    calls.move("x", "memory", **ran(8.0, memory=2**30))
    calls.move("y", "erred", **ran(99.0))
    calls.move("z", "memory", startstops=[])
    # Nor does a call whose result was found, or a task that gives a result to another.
    hit = ran(0.001)
    hit["startstops"].append(cache_addition([CacheOutcome(OutcomeKind.FOUND, saved_s=8.0)]))
    calls.move("hit", "memory", **hit)
    calls.scheduler.tasks["known"].annotations[KNOWN_ANNOTATION] = True
    calls.submit("known")
    calls.move("known", "processing")
    calls.move("known", "memory", **ran(0.001))
    model = TaskModel()
    model.observe(Sample(RUN, 8.0, 2**30))
    assert calls.workload.model.mean_s(RUN) == model.mean_s(RUN)
    assert calls.workload.model.forecast(RUN).memory == 2**30


def test_calls_that_were_there_before_are_counted_too(calls):
    calls.add("x")
    calls.move("x", "processing")
    calls.add("y")
    again = Workload(calls.scheduler)
    assert again.ready_calls == {"a": {RUN: 1}}
    assert again.graph
    assert again.submitted_calls == {"a": 2}


def test_a_submitted_call_counts_once_until_it_is_released(calls):
    calls.add("x", submitted=True)
    calls.submit("x")  # another client asks for it too
    assert calls.workload.graph
    assert calls.workload.submitted_calls == {"a": 1}
    calls.move("x", "processing")
    calls.submit("x")
    assert calls.workload.submitted_calls == {"a": 1}
    assert calls.workload.ready_calls == {"a": {RUN: 1}}
    for state in ("released", "waiting"):
        calls.move("x", state)
    assert calls.workload.submitted_calls == {"a": 2}


def test_a_restart_leaves_no_calls(calls):
    for key in "xy":
        calls.add(key)
    calls.move("x", "processing")
    calls.ledger.restart(calls.scheduler)
    assert not calls.workload.ready_calls["a"]
    assert not calls.workload.graph


@pytest.mark.parametrize(("free", "elapsed"), [(3, [8.0, 0.5, 0.5]), (2, [8.0, 0.5])])
def test_running_tasks_are_named_or_fit_next(calls, monkeypatch, free, elapsed):
    monkeypatch.setattr("scalable.scheduler.task_log.time", SimpleNamespace(time=lambda: 1000.0))
    for key in "uvwxyz":
        calls.add(key)
    calls.move(*"uvwxyz", "processing")
    tasks = calls.scheduler.tasks
    executing = {tasks["u"]: 7.0, tasks["z"]: 5.0}
    worker = SimpleNamespace(
        nthreads=3, last_seen=999.0, executing=executing, processing={}, resources={"a": free}
    )
    for key in "uyxwv":  # z was taken from it since its last heartbeat
        tasks[key].processing_on = worker
        worker.processing[tasks[key]] = 0.0
    running = dict(running_tasks(worker))
    assert [task.key for task in running] == list("uvw")[: len(elapsed)]
    assert list(running.values()) == elapsed
    assert [t for _, t in calls.workload.running_on(worker)] == elapsed


# Workers on their way ----------------------------------------------------------------------------


def test_starts_are_known_by_their_age_and_teach_how_long_they_take():
    starts = Starts()
    assert starts.typical_s(60.0) == 60.0
    assert starts.expect(2, 100.0) == [0.0, 0.0]
    assert starts.expect(3, 110.0) == [10.0, 10.0, 0.0]
    starts.connected(120.0)
    assert starts.typical_s(60.0) == 20.0
    assert starts.expect(2, 120.0) == [20.0, 10.0]
    assert starts.expect(1, 121.0) == [21.0]  # what was asked for last was given up
    starts.connected(130.0)
    starts.connected(140.0)  # nobody waited for this one
    assert starts.typical_s(60.0) == 25.0
    assert starts.expect(-1, 150.0) == []
