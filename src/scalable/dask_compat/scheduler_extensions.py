"""Seams of a scheduler's extensions: work stealing, result moves, events, spans, shuffles."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import islice
from typing import Any

import dask.config
from distributed import Scheduler
from distributed.active_memory_manager import ActiveMemoryManagerExtension, ReduceReplicas
from distributed.broker import Broker
from distributed.http.scheduler import prometheus
from distributed.scheduler import DEFAULT_EXTENSIONS, TaskState, WorkerState
from distributed.spans import Span, SpansSchedulerExtension
from distributed.stealing import WorkStealing

#: Maximum seconds between two checks. With Dask's one second an idle worker waits for half a second
#: on average while others have a queue.
INTERVAL_S = 0.1
#: Seconds for which a check looks for tasks to move, after Dask has looked at all workers. The next
#: one, with other workers first, goes on. A moved task takes 0.05 ms.
CHECK_S = 0.01
#: Maximum number of idle workers that are compared for one task, and of workers for one result.
IDLE_COMPARED, COMPARED = 4, 20


class _Part:
    """A scheduler that appears to have only the given idle and loaded workers."""

    def __init__(
        self, scheduler: Scheduler, idle: list[WorkerState], loaded: list[WorkerState]
    ) -> None:
        self._scheduler = scheduler
        self.idle = {worker.address: worker for worker in idle}
        others = random.sample(loaded, len(loaded))
        self.workers = {**self.idle, **{worker.address: worker for worker in others}}
        self.saturated = [worker for worker in others if worker in scheduler.saturated]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scheduler, name)


class PoolStealing(WorkStealing):
    """Dask's work stealing, applied first within each pool and then to all workers.
    Dask compares the load across pools, so a pool's workers may idle while it has queued tasks.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__(scheduler)
        self._callback_time = min(self._callback_time, INTERVAL_S)
        #: Pool that is balanced, or None for all workers, for how long, and, once it has begun,
        #: until which time of the monotonic clock.
        self._tag: str | None = None
        self._share_s, self._ends_at = CHECK_S, math.inf

    def balance(self) -> None:
        scheduler = self.scheduler
        loaded = [ws for ws in scheduler.running if len(ws.processing) > ws.nthreads]
        if not loaded:
            return
        idle = [ws for ws in scheduler.running if _takes_more(scheduler, ws)]
        idle_with, loaded_with = _by_tag(idle), _by_tag(loaded)
        tags = [tag for tag in reversed(idle_with) if tag in loaded_with]  # the last is None
        try:
            for self._tag in tags:
                part: Any = _Part(scheduler, idle_with[self._tag], loaded_with[self._tag])
                self.scheduler = part
                self._share_s, self._ends_at = CHECK_S / len(tags), math.inf
                super().balance()
        finally:
            self.scheduler = scheduler

    def _get_thief(
        self,
        scheduler: Any,
        ts: TaskState,
        potential_thieves: set[WorkerState],
        *,
        occupancies: dict[WorkerState, float],
    ) -> WorkerState | None:
        """Return an idle worker or None. Does not build Dask's set of all the tag's workers."""
        now = time.monotonic()
        if self._ends_at == math.inf:
            self._ends_at = now + self._share_s
        elif now > self._ends_at:
            potential_thieves.clear()  # ends the search
            return None
        tags = ts.resource_restrictions
        if not tags or len(tags) > 1 or ts.worker_restrictions or ts.host_restrictions:
            return super()._get_thief(scheduler, ts, potential_thieves, occupancies=occupancies)
        ((tag, slots),) = tags.items()
        if tag != self._tag:
            return None
        able = (worker for worker in potential_thieves if worker.resources[tag] >= slots)
        objective = partial(self.stealing_objective, ts, occupancies=occupancies)
        return min(islice(able, IDLE_COMPARED), key=objective, default=None)


def _takes_more(scheduler: Scheduler, worker: WorkerState) -> bool:
    """Return whether a worker has a free thread, or is full but idle according to Dask."""
    count = len(worker.processing)
    short = count == worker.nthreads and worker.address in scheduler.idle
    return count < worker.nthreads or short


def _by_tag(workers: list[WorkerState]) -> dict[str | None, list[WorkerState]]:
    """Return the workers of each tag, and all of them as those of None."""
    found: dict[str | None, list[WorkerState]] = {None: workers}
    for worker in workers:
        for tag in worker.resources:
            found.setdefault(tag, []).append(worker)
    return found


# Moving results away from workers that leave ------------------------------------------------------


class SamplingMemoryManager(ActiveMemoryManagerExtension):
    """Dask's Active Memory Manager, with moves to the emptiest of ``COMPARED`` random workers.
    Dask compares all workers for each result: 2 ms with 5,000 workers. See Mitzenmacher, "The power
    of two choices in randomized load balancing", 2001.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        #: Running workers, while the policies run.
        self._running: list[WorkerState] = []
        super().__init__(*args, **kwargs)

    def run_once(self) -> None:
        """Run all policies. Skip a lone policy that removes copies of results if there are none."""
        copies = self.scheduler.replicated_tasks
        if not copies and all(type(policy) is ReduceReplicas for policy in self.policies):
            return  # before Dask reads the memory of each worker
        self._running = list(self.scheduler.running)
        try:
            super().run_once()
        finally:
            self._running = []

    def _find_recipient(
        self,
        ts: TaskState,
        candidates: set[WorkerState] | None,
        pending_repl: set[WorkerState],
    ) -> WorkerState | None:
        if candidates is None and len(self._running) > COMPARED:
            few = set(random.sample(self._running, COMPARED))
            found = super()._find_recipient(ts, few, pending_repl)
            if found is not None:
                return found
        return super()._find_recipient(ts, candidates, pending_repl)


# What a scheduler keeps of finished work ----------------------------------------------------------


#: Key of Dask's configuration: number of the latest computations that a scheduler keeps. As many
#: root spans, which correspond to them, are kept.
KEPT = "distributed.diagnostics.computations.max-history"


class ForgettingBroker(Broker):
    """Event broker of a scheduler that drops empty topics."""

    def truncate(self, topic: str | None = None) -> None:
        """Remove a topic's events, and the topic if nobody subscribes. None removes all events."""
        super().truncate(topic)
        known = None if topic is None else self._topics.get(topic)
        if topic is not None and known is not None and not known.subscribers:
            del self._topics[topic]


class ForgettingSpans(SpansSchedulerExtension):
    """Spans of a scheduler, without old spans whose tasks are all forgotten. Dask keeps them."""

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__(scheduler)
        self._kept = max(1, int(dask.config.get(KEPT)))
        self._look_at = 2 * self._kept

    def observe_tasks(self, tss: Iterable[Any], *args: Any, **kwargs: Any) -> dict[Any, Any]:
        if len(self.root_spans) >= self._look_at:
            self._forget()
            self._look_at = len(self.root_spans) + self._kept
        return super().observe_tasks(tss, *args, **kwargs)

    def heartbeat(self, ws: Any, data: dict[Any, float]) -> None:
        super().heartbeat(ws, {key: value for key, value in data.items() if key[1] in self.spans})

    def _forget(self) -> None:
        old = [span for span in self.root_spans[: -self._kept] if self._is_over(span)]
        gone = {span.id for root in old for span in root.traverse_spans()}
        for spans in (
            self.root_spans,
            *self.spans_search_by_name.values(),
            *self.spans_search_by_tag.values(),
        ):
            spans[:] = [span for span in spans if span.id not in gone]
        _drop_empty(self.spans_search_by_name)
        _drop_empty(self.spans_search_by_tag)
        for name in gone:
            del self.spans[name]
        first = min((span._total_nthreads_offset for span in self.spans.values()), default=0)  # noqa: SLF001
        del self.scheduler.total_nthreads_history[:first]
        for span in self.spans.values():
            span._total_nthreads_offset -= first  # noqa: SLF001

    def _is_over(self, root: Span) -> bool:
        groups = self.scheduler.task_groups
        return all(groups.get(group.name) is not group for group in root.traverse_groups())


def _drop_empty(lists: dict[Any, list[Span]]) -> None:
    for name in [name for name, spans in lists.items() if not spans]:
        del lists[name]


def forget_unknown_duration(scheduler: Scheduler, task: TaskState) -> None:
    """Remove a forgotten task from Dask's work stealing. Dask keeps tasks that always fail."""
    stealing = scheduler.extensions.get("stealing")
    durations = {} if stealing is None else stealing.unknown_durations
    unknown = durations.get(task.prefix.name)
    if unknown is not None:
        unknown.discard(task)
        if not unknown:
            del durations[task.prefix.name]


# Shuffles between workers -------------------------------------------------------------------------


def keep_shuffles_in_pools(scheduler: Scheduler) -> None:
    """Make shuffles assign outputs only to workers with the required resources. Idempotent."""
    shuffle_mender()(dask_scheduler=scheduler)


def shuffle_mender() -> Callable[..., None]:
    """Return :func:`keep_shuffles_in_pools` as a function for ``Client.run_on_scheduler``."""

    # A nested function is pickled by value, so that the scheduler need not import this package.
    def mend(dask_scheduler: Any) -> None:
        from distributed.shuffle._core import barrier_key
        from distributed.shuffle._exceptions import P2PIllegalStateError

        plugin = dask_scheduler.extensions.get("shuffle")
        if plugin is None or getattr(plugin, "scalable_in_pools", False):
            return
        choose = plugin._calculate_worker_for  # noqa: SLF001

        def able(tasks: list[Any]) -> set[str]:
            found = {worker.address for worker in dask_scheduler.running}
            for task in tasks:
                workers = dask_scheduler.valid_workers(task)
                if workers is not None:
                    found &= {worker.address for worker in workers}
            return found - plugin.scalable_leaving or found

        def within_pool(spec: Any) -> Any:
            barrier = dask_scheduler.tasks[barrier_key(spec.id)]
            tasks = [barrier, *barrier.dependents]
            workers = able(tasks)
            if not workers and any(task.resource_restrictions for task in tasks):
                raise P2PIllegalStateError(
                    f"no running worker can run all outputs of the shuffle {spec.id}: they need "
                    f"{[task.resource_restrictions for task in tasks[:2]]}"
                )
            restrictions = barrier.worker_restrictions
            barrier.worker_restrictions = workers or restrictions
            try:
                return choose(spec)
            finally:
                barrier.worker_restrictions = restrictions

        plugin.scalable_leaving = set()
        plugin._calculate_worker_for = within_pool  # noqa: SLF001
        plugin.scalable_in_pools = True

    return mend


class ShufflesOf:
    """Shuffles in which a worker participates. They would restart if the worker left now."""

    def __init__(self, scheduler: Scheduler, address: str) -> None:
        self._plugin: Any = scheduler.extensions.get("shuffle")
        self._address = address

    def running(self) -> bool:
        """Return whether the worker participates in an unfinished shuffle."""
        active = getattr(self._plugin, "active_shuffles", {})
        return any(self._address in each.participating_workers for each in active.values())

    def avoid(self, avoided: bool) -> None:
        """Set whether later shuffles avoid the worker, if other workers can take the outputs."""
        leaving: set[str] = getattr(self._plugin, "scalable_leaving", set())
        (leaving.add if avoided else leaving.discard)(self._address)


# Metrics for Prometheus ---------------------------------------------------------------------------


def dask_metrics_handler() -> type[Any]:
    """Return the handler of Dask's metrics page. Its ``get`` does not finish the response."""
    ((_, handler, _),) = prometheus.routes
    return handler  # type: ignore[no-any-return]


# The extensions of a scheduler --------------------------------------------------------------------


_SETTING = "distributed.scheduler.work-stealing"


def extensions() -> Mapping[str, Any]:
    """Return a scheduler's extensions by name, some of them scalable's in place of Dask's.
    Dask's setting ``distributed.scheduler.work-stealing`` still applies.
    """
    found = DEFAULT_EXTENSIONS | {
        "stealing": PoolStealing,
        "amm": SamplingMemoryManager,
        "spans": ForgettingSpans,
    }
    if not dask.config.get(_SETTING):
        found.pop("stealing")
    return found
