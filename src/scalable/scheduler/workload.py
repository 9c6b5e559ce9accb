"""Workload of each pool: its waiting and running tasks, updated by task log events.
The cost of reading a workload grows with the pool's workers, not with its tasks.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from distributed import Scheduler
from distributed.scheduler import WorkerState

from scalable.scaling.outlook import Outlook, outlooks_on
from scalable.scaling.readiness import LARGEST_LOOK, Coming, GraphView, coming
from scalable.scaling.task_model import Kind, Sample, TaskModel, size_bucket
from scalable.scheduler.task_log import (
    READY,
    EndedTask,
    Listener,
    LoggedTask,
    TaskLog,
    running_tasks,
)

#: Two lower limits of the time between forecasts of coming tasks: a multiple of the time that a
#: forecast takes, and a number of seconds. They keep forecasts from slowing the scheduler down.
LOOK_SHARE, LOOK_INTERVAL_S = 50.0, 1.0


class _Counted(NamedTuple):
    """Kind of an unfinished task, and the tags and slots that it takes."""

    kind: Kind
    slots: tuple[tuple[str, int], ...]


class Workload(Listener):
    """Counts a scheduler's tasks by pool, kind and state. A task counts once per slot."""

    def __init__(self, scheduler: Scheduler, model: TaskModel | None = None) -> None:
        self.scheduler = scheduler
        self.model = model or TaskModel()
        self.ready_calls: dict[str, Counter[Kind]] = {}
        self.submitted_calls: Counter[str] = Counter()
        self._ready: dict[Any, _Counted] = {}
        self._blocked: dict[Any, _Counted] = {}
        self._outlooks: list[tuple[Outlook, Coming]] = []
        self._look_at = 0.0
        log = TaskLog.of(scheduler)
        for task in scheduler.tasks.values():
            call = log.call(task.key)
            if task.state == "waiting":
                self._block(call)
            elif task.state in READY:
                self._count(call)
            for tag, slots in call.slots:
                self.submitted_calls[tag] += slots
        log.listen(self)

    # Events of the task log -----------------------------------------------------------------------

    def waiting(self, call: LoggedTask) -> None:
        """Count a task as submitted, and as blocked until it is ready."""
        self._leave(call.key)
        self._block(call)
        for tag, slots in call.slots:
            self.submitted_calls[tag] += slots * call.calls

    def ready(self, call: LoggedTask) -> None:
        """Count a task as ready. The size of its input is part of its kind."""
        self._leave(call.key)
        self._count(call)

    def ended(self, end: EndedTask) -> None:
        counted = self._leave(end.call.key)
        if end.succeeded and end.ran and counted is not None:
            self._learn(counted.kind, end)

    def left(self, call: LoggedTask) -> None:
        self._leave(call.key)

    def forgotten(self, call: LoggedTask) -> None:
        self._leave(call.key)

    def _block(self, call: LoggedTask) -> None:
        kind = Kind(call.slots[0][0], call.name)
        self._blocked[call.key] = _Counted(kind, call.slots)

    def _count(self, call: LoggedTask) -> None:
        kind = Kind(call.slots[0][0], call.name, size_bucket(call.input_bytes))
        self._ready[call.key] = _Counted(kind, call.slots)
        for tag, count in call.slots:
            self.ready_calls.setdefault(tag, Counter())[kind] += count

    def _leave(self, key: Any) -> _Counted | None:
        counted = self._ready.pop(key, None)
        if counted is None:
            return self._blocked.pop(key, None)
        for tag, count in counted.slots:
            kinds = self.ready_calls[tag]
            kinds[counted.kind] -= count
            if not kinds[counted.kind]:
                del kinds[counted.kind]
        return counted

    def _learn(self, kind: Kind, end: EndedTask) -> None:
        began, ended, _, _, memory, bundle, *_ = end.measured
        if bundle is not None:
            for duration in bundle["quantiles_s"][1:-1]:
                self.model.observe(Sample(kind, duration, memory))
        elif began is not None and ended is not None:
            self.model.observe(Sample(kind, ended - began, memory))

    # Counts and forecasts ------------------------------------------------------------------------

    @property
    def graph(self) -> bool:
        """True if any task is blocked by another one."""
        return bool(self._blocked)

    def running_on(self, worker: WorkerState) -> Iterator[tuple[_Counted, float]]:
        for task, elapsed in running_tasks(worker):
            if (call := self._ready.get(task.key)) is not None:
                yield call, elapsed

    def in_clients(self, tag: str) -> Counter[Kind]:
        """Return the slots needed by a tag's tasks that are queued in clients, by kind."""
        relay = getattr(self.scheduler, "relay", None)
        waiting = relay.backlog(tag) if relay is not None else {}
        return Counter({Kind(tag, task, size_bucket(0)): n for task, n in waiting.items()})

    def outlooks(self, tag: str, slots: Mapping[str, Any], startup_s: float) -> list[Outlook]:
        """Return the outlooks (possible durations) on a tag's tasks. Empty if none is blocked."""
        if not self._blocked:
            self._outlooks = []
            return []
        now = time.monotonic()
        if now >= self._look_at or not self._outlooks:
            self._outlooks = self._looked_ahead(slots, startup_s)
            spent = time.monotonic() - now
            self._look_at = now + max(LOOK_INTERVAL_S, LOOK_SHARE * spent)
        return [
            outlook._replace(coming=forecast.get(tag, ())) for outlook, forecast in self._outlooks
        ]

    def _looked_ahead(
        self, slots: Mapping[str, Any], startup_s: float
    ) -> list[tuple[Outlook, Coming]]:
        graph = self._graph()
        made = outlooks_on(graph, self.model, startup_s)
        # All outlooks together examine as many tasks as one may.
        limit = LARGEST_LOOK // len(made)
        return [(each, coming(graph, each.lengths, slots, limit)) for each in made]

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
