"""What the calls of each pool are doing: counted while they change state, not looked for later.

It also learns what calls take. A look at a pool costs what its workers are many, however many
calls are queued.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

from distributed import Scheduler, SchedulerPlugin
from distributed.scheduler import TaskState, WorkerState

from scalable.protocol.dask_seams.scheduler import startstops
from scalable.protocol.measured import BUNDLE_ANNOTATION, TASK_ANNOTATION, measured
from scalable.scaling.readiness import Coming, GraphView, coming
from scalable.scaling.task_model import Kind, Sample, TaskModel, size_bucket
from scalable.scheduler.recorder import input_bytes

#: What a task stands for that is no bundle.
ONE_CALL = {"calls": 1}
#: States of a call that a worker could run, or runs.
_READY = frozenset({"processing", "queued", "no-worker"})
#: Coming calls are looked at again after so many times what a look takes, and not sooner than
#: after so many seconds: they must not keep the scheduler from its work.
LOOK_SHARE, LOOK_INTERVAL_S = 50.0, 1.0


class _Call(NamedTuple):
    """A call that has not ended, with the pools that it takes slots of."""

    kind: Kind
    slots: tuple[tuple[str, int], ...]


class Workload(SchedulerPlugin):
    """Counts the calls of a scheduler by pool, kind and state.

    A call that takes several slots of its worker counts as so many calls.

    Parameters
    ----------
    scheduler
        Whose calls these are.
    model
        What learns from calls that end.

    Attributes
    ----------
    ready
        Tag -> kind -> calls that run or could run.
    submitted
        Tag -> calls so far, ended ones included.
    """

    name = "scalable-workload"

    def __init__(self, scheduler: Scheduler, model: TaskModel | None = None) -> None:
        self.scheduler = scheduler
        self.model = model or TaskModel()
        self.ready: dict[str, Counter[Kind]] = {}
        self.submitted: Counter[str] = Counter()
        self._ready: dict[Any, _Call] = {}
        self._blocked: dict[Any, _Call] = {}
        self._coming: Coming = {}
        self._look_at = 0.0
        for task in scheduler.tasks.values():
            self._enter(task, task.state)
            for tag, slots in _slots(task):
                self.submitted[tag] += slots

    # What the scheduler tells ---------------------------------------------------------------------

    def transition(self, key: Any, start: str, finish: str, *_: Any, **details: Any) -> None:
        """Take note of what became of a call."""
        if finish in _READY:
            if start not in _READY:
                self._leave(key)
                self._enter(self.scheduler.tasks[key], finish)
            return
        call = self._leave(key)
        if finish == "waiting":
            task = self.scheduler.tasks[key]
            self._enter(task, finish)
            if start == "released":
                calls = (task.annotations or {}).get(BUNDLE_ANNOTATION, ONE_CALL)["calls"]
                for tag, slots in self._blocked[key].slots:
                    self.submitted[tag] += slots * calls
        elif finish == "memory" and start == "processing" and call is not None:
            self._learn(call.kind, startstops(details))

    def _enter(self, task: TaskState, state: str) -> None:
        slots = _slots(task)
        if state == "waiting":
            self._blocked[task.key] = _Call(_kind(task, slots[0][0], None), slots)
        elif state in _READY:
            bucket = size_bucket(input_bytes(task))
            call = self._ready[task.key] = _Call(_kind(task, slots[0][0], bucket), slots)
            for tag, count in slots:
                self.ready.setdefault(tag, Counter())[call.kind] += count

    def _leave(self, key: Any) -> _Call | None:
        call = self._ready.pop(key, None)
        if call is None:
            return self._blocked.pop(key, None)
        for tag, count in call.slots:
            kinds = self.ready[tag]
            kinds[call.kind] -= count
            if not kinds[call.kind]:
                del kinds[call.kind]
        return call

    def _learn(self, kind: Kind, timings: Any) -> None:
        began, ended, _, _, memory, bundle = measured(timings)
        if bundle is not None:
            for duration in bundle["quantiles_s"][1:-1]:
                self.model.observe(Sample(kind, duration, memory))
        elif began is not None and ended is not None:
            self.model.observe(Sample(kind, ended - began, memory))

    # What is asked --------------------------------------------------------------------------------

    @property
    def graph(self) -> bool:
        """Whether any call waits for others."""
        return bool(self._blocked)

    def running_on(self, worker: WorkerState) -> Iterator[tuple[_Call, float]]:
        """The calls that run on a worker, and how long each has run for, in seconds.

        Workers name what they run with each heartbeat; until the next one, calls that a worker was
        given take the places that are free.
        """
        since = max(0.0, time.time() - worker.last_seen)
        named = [t for t in worker.executing if t.processing_on is worker]
        for task in named:
            if (call := self._ready.get(task.key)) is not None:
                yield call, worker.executing[task] + since
        places = worker.nthreads - len(named)
        if places > 0 and len(worker.processing) > len(named):
            others = (task for task in worker.processing if task not in worker.executing)
            for task in islice(others, places):
                if (call := self._ready.get(task.key)) is not None:
                    yield call, since / 2

    def in_clients(self, tag: str) -> Counter[Kind]:
        """Calls that wait in clients, in the backlogs of their pools of calls."""
        relay = getattr(self.scheduler, "relay", None)
        waiting = relay.backlog(tag) if relay is not None else {}
        return Counter({Kind(tag, task, size_bucket(0)): n for task, n in waiting.items()})

    def coming(self, slots: Mapping[str, Any]) -> Coming:
        """When calls that wait for others are expected to be ready.

        Parameters
        ----------
        slots
            Component -> :class:`scalable.scaling.readiness.Slots`.
        """
        if not self._blocked:
            return {}
        now = time.monotonic()
        if now >= self._look_at:
            self._coming = coming(self._graph(), self.model, slots)
            spent = time.monotonic() - now
            self._look_at = now + max(LOOK_INTERVAL_S, LOOK_SHARE * spent)
        return self._coming

    def _graph(self) -> GraphView[Any]:
        running: dict[Any, tuple[Kind, float]] = {}
        for worker in self.scheduler.workers.values():
            for task, elapsed in worker.executing.items():
                if task.processing_on is worker and (call := self._ready.get(task.key)):
                    running[task.key] = (call.kind, elapsed)
        tasks = self.scheduler.tasks
        return GraphView(
            running=running,
            queued={k: call.kind for k, call in self._ready.items() if k not in running},
            blocked={
                key: (call.kind, [other.key for other in tasks[key].waiting_on or ()])
                for key, call in self._blocked.items()
            },
        )


def _slots(task: TaskState) -> tuple[tuple[str, int], ...]:
    """The pools of which a call takes slots, and how many; one without a tag takes one of any."""
    asked = task.resource_restrictions
    if not asked:
        return (("", 1),)
    return tuple((str(name), max(1, int(amount))) for name, amount in asked.items())


def _kind(task: TaskState, tag: str, bucket: int | None) -> Kind:
    name = (task.annotations or {}).get(TASK_ANNOTATION) or task.prefix.name
    return Kind(tag, str(name), bucket)
