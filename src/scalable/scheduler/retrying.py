"""Retries of failed tasks according to their retry policies.
A task that waits for its retry stays on the scheduler, without a slot or a thread.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from distributed import Scheduler
from distributed.scheduler import TaskState, WorkerState

from scalable.dask_compat.scheduler import LostWorker, startstops
from scalable.dask_compat.tasks import (
    RetryingScheduler,
    begun_on,
    fail_ready_task,
    run_now,
    take_back,
)
from scalable.model import ComponentSpec, DeploymentSpec, RetryPolicy
from scalable.model.failures import OUT_OF_MEMORY
from scalable.protocol.events import Event
from scalable.protocol.failures import MOST_OUT_OF_MEMORY, OutOfMemory, WalltimeReached
from scalable.protocol.handlers import Handler, LossReason, offer
from scalable.protocol.measured import measured
from scalable.protocol.operations import LEAVING_TOPIC, WAITING_TOPIC
from scalable.scheduler.task_log import Listener, LoggedTask, TaskLog, failure_in
from scalable.units import as_written, format_duration
from scalable.views.facts import NextTry

logger = logging.getLogger("scalable.scheduler")

#: Maximum number of characters of an error that are logged and explained.
LONGEST_ERROR = 200


@dataclass(frozen=True)
class _Held:
    """Task that waits for its next attempt."""

    #: Monotonic time of the next attempt.
    until: float
    #: Number of the next attempt, and maximum number of attempts.
    number: int
    of: int
    error: str
    #: Tag of the pool of the next attempt, or None for the same pool.
    tag: str | None


class Retrying(Listener):
    """Decides which failed tasks are retried, and holds them until then.
    ``may_have_workers`` returns whether the pool of a tag has or will get workers.
    """

    def __init__(self, scheduler: RetryingScheduler) -> None:
        self._scheduler = scheduler
        self.deployment: DeploymentSpec | None = None
        self.may_have_workers: Callable[[str], bool] = self._is_connected
        self._failures: dict[Any, int] = {}
        self._held: dict[Any, _Held] = {}
        TaskLog.of(scheduler).listen(self)

    def tasks(self) -> list[str]:
        """Return the names of the tasks that have a policy."""
        known = {} if self.deployment is None else self.deployment.tasks
        return [name for name, task in known.items() if task.retries is not None]

    # Decisions ----------------------------------------------------------------------------------

    def erred(self, task: TaskState, worker: str, details: Mapping[str, Any]) -> bool | None:
        """Return whether a failed task is retried, or None if it has no policy."""
        policy = self._policy(task)
        if policy is None:
            return None
        name, message = failure_in(details)
        failure = measured(startstops(details)).failure or {}
        kinds = failure.get("kinds") or (name,)
        state = self._scheduler.workers.get(worker)
        where = f"worker {worker if state is None else state.name}"
        return self._tries_again(task, policy, kinds, f"failed on {where}", f"{name}: {message}")

    def out_of_memory(self, task: TaskState, error: str, *, counts: bool) -> bool | None:
        """Return whether a task that ran out of memory is retried, or None without a policy.
        ``counts`` is True if this attempt must still be counted. A retried task leaves its worker.
        """
        policy = self._policy(task)
        if policy is None or task.state not in ("processing", "queued", "no-worker"):
            return None
        if not self._tries_again(task, policy, (OUT_OF_MEMORY,), "ran out of memory", error):
            return False
        take_back(self._scheduler, task, failed=counts)
        return True

    def _policy(self, task: TaskState) -> RetryPolicy | None:
        if self.deployment is None or "retries" in (task.annotations or {}):
            return None  # the task's own number of retries applies
        call = TaskLog.of(self._scheduler).call(task.key)
        known = None if call.bundle is not None else self.deployment.tasks.get(call.name)
        return None if known is None else known.retries

    def _tries_again(
        self, task: TaskState, policy: RetryPolicy, kinds: Iterable[str], what: str, error: str
    ) -> bool:
        failures = self._failures.pop(task.key, 0) + 1
        kinds = tuple(kinds)
        wait_s = policy.wait_s(failures) if policy.covers(kinds) else None
        if wait_s is None:
            logger.debug("task %s %s and is not retried: %s", task.key, what, error)
            return False
        self._failures[task.key] = failures
        is_memory = OUT_OF_MEMORY in kinds or "MemoryError" in kinds
        tag, why = self._next_pool(task, policy) if is_memory else (None, "")
        shown = error if len(error) <= LONGEST_ERROR else f"{error[:LONGEST_ERROR]}..."
        held = _Held(time.monotonic() + wait_s, failures + 1, policy.count + 1, shown, tag)
        self._held[task.key] = held
        self._scheduler.loop.call_later(wait_s, self._try, task.key, held)
        logger.info(
            "task %s %s, and waits %s before attempt %d of %d%s: %s",
            task.key, what, format_duration(wait_s), held.number, held.of, why, shown,
        )  # fmt: skip
        return True

    def _next_pool(self, task: TaskState, policy: RetryPolicy) -> tuple[str | None, str]:
        """Return the tag for a retry after an out-of-memory error, and a phrase for the log."""
        tag = LoggedTask(task).tag
        if policy.memory_factor is None or tag is None:
            return None, ""
        assert self.deployment is not None
        known = self.deployment.components
        components = {t: c for t, c in known.items() if t == tag or self.may_have_workers(t)}
        slots = int((task.resource_restrictions or {})[tag])
        found = larger_component(components, tag, policy.memory_factor, slots)
        if found is None:
            return None, f" in pool {tag!r} again: no pool like it with enough memory has workers"
        memory = as_written(components[found].memory_bytes or 0)
        return found, f" in pool {found!r}, which has {memory}"

    # Waiting ------------------------------------------------------------------------------------

    def holds(self, task: TaskState) -> bool:
        """Route a task to its retry's pool, if any. Return whether it waits for the retry."""
        held = self._held.get(task.key)
        if held is None:
            return False
        if held.tag is not None:
            self._move(task, held.tag)
        return True

    def next_try(self, key: Any) -> NextTry | None:
        held = self._held.get(key)
        if held is None:
            return None
        left_s = max(0.0, held.until - time.monotonic())
        return NextTry(left_s, held.number, held.of, held.error)

    def _is_connected(self, tag: str) -> bool:
        return bool(self._scheduler.resources.get(tag))

    def _move(self, task: TaskState, tag: str) -> None:
        call = TaskLog.of(self._scheduler).call(task.key)
        if call.tag == tag:
            return
        others = dict(task.resource_restrictions or {})
        slots = others.pop(call.tag or "", 1)
        task.resource_restrictions = {tag: slots, **others}
        call.routed_anew()

    def _try(self, key: Any, held: _Held) -> None:
        if self._held.get(key) is not held:
            return
        del self._held[key]
        task = self._scheduler.tasks.get(key)
        if task is not None:
            run_now(self._scheduler, task)

    # Events -------------------------------------------------------------------------------------

    def forgotten(self, call: LoggedTask) -> None:
        self._held.pop(call.key, None)
        self._failures.pop(call.key, None)

    def closed(self, scheduler: Any) -> None:
        self.restarted(scheduler)

    def restarted(self, scheduler: Any) -> None:  # noqa: ARG002
        self._held.clear()
        self._failures.clear()


# Larger pools -------------------------------------------------------------------------------------


def larger_component(
    components: Mapping[str, ComponentSpec], tag: str, factor: float, slots: int = 1
) -> str | None:
    """Return the smallest suitable pool with ``factor`` times the memory of ``tag``, or None."""
    own = components.get(tag)
    if own is None or own.memory_bytes is None:
        return None
    able = [
        (other.memory_bytes, name)
        for name, other in components.items()
        if name != tag
        and other.memory_bytes is not None
        and other.memory_bytes >= factor * own.memory_bytes
        and _surroundings(other) == _surroundings(own)
        and other.gpus >= own.gpus
        and other.slots >= slots
    ]
    return min(able)[1] if able else None


def _surroundings(component: ComponentSpec) -> tuple[Any, ...]:
    c, mounts, env = component, dict(component.mounts), dict(component.env)
    return c.image, c.runtime, mounts, env, c.preload_script, c.setup, c.python


# Lost workers -------------------------------------------------------------------------------------

#: Seconds to wait for the reason of a loss, which a manager detects after the scheduler.
REASON_S = 15.0
#: A worker lost up to this many seconds before the end of its walltime counts as cut off by it.
EARLY_S = 15.0
#: A cut-off task counts as too long if it ran for this part of the walltime, and fails the second
#: time.
LARGE_PART = 0.5
MOST_CUT_OFF = 2
#: Number of lost workers, and of tasks that have lost one, that are kept.
REMEMBERED = 10_000
_LOST = "lost: "


class LossReasons(Listener):
    """Reasons why workers were lost, and the tasks that ran on them."""

    def __init__(self, scheduler: Scheduler, retrying: Retrying) -> None:
        self._scheduler, self._retrying = scheduler, retrying
        self._connected: dict[str, WorkerState] = {}
        #: Keys of the tasks that lost workers had started, as far as known.
        self._begun: dict[str, set[Any]] = {}
        self._names: dict[str, str] = {}
        self._lost_with: dict[Any, list[str]] = {}
        self._reasons: dict[str, LossReason] = {}
        # By worker name: component and memory limit in bytes.
        self._memories: dict[str, tuple[str, int]] = {}
        self._too_large: dict[Any, int] = {}
        self._ended_for_memory: dict[str, None] = {}  # a set in order of insertion
        #: Names of the workers whose own report has been counted.
        self._counted: dict[str, None] = {}
        #: Monotonic time of the end of a worker's walltime, and the walltime in seconds, by name.
        self._walltimes: dict[str, tuple[float, float]] = {}
        #: Number of times that a walltime has cut off a task, by key.
        self._cut_off: dict[Any, int] = {}
        self._news = asyncio.Event()
        TaskLog.of(scheduler).listen(self)
        offer(
            scheduler,
            {
                Handler.OUT_OF_MEMORY: self.out_of_memory,
                Handler.ENDED_FOR_MEMORY: self.ended_for_memory,
                Handler.REASONS_OF_LOSS: self.reasons_of_loss,
            },
        )

    # Events -------------------------------------------------------------------------------------

    def worker_added(self, worker: WorkerState) -> None:
        name = self._names[worker.address] = str(worker.name)
        self._connected[worker.address] = worker
        self._memories[name] = next(iter(worker.resources), ""), worker.memory_limit
        _forget_oldest(self._memories)

    def worker_lost(self, lost: LostWorker) -> None:
        name = self._names.pop(lost.address, None)
        state = self._connected.pop(lost.address, None)
        if name in self._walltimes and state is not None:
            self._judge_walltime(name, state, lost.running, *self._walltimes.pop(name))
        if name is None or state is None or lost.expected:
            return
        known = (self._scheduler.tasks.get(key) for key in lost.running)
        begun = begun_on(state, [task for task in known if task is not None])
        self._begun[name] = {task.key for task in begun}
        _forget_oldest(self._begun)
        for key in lost.running:
            self._lost_with.setdefault(key, []).append(name)
        _forget_oldest(self._lost_with)
        if name in self._ended_for_memory:  # counted once Dask has reassigned its tasks
            asyncio.get_running_loop().call_soon(self.ended_for_memory, [name])

    def forgotten(self, call: LoggedTask) -> None:
        self._lost_with.pop(call.key, None)
        self._too_large.pop(call.key, None)
        self._cut_off.pop(call.key, None)

    def event(self, event: Event) -> None:
        reason = event.get("reason") or ""
        if event.get("event") == "removed" and reason.startswith(_LOST):
            self._know(str(event["worker"]), reason.removeprefix(_LOST))

    def _know(self, name: str, reason: str, component: str = "", memory: int = 0) -> None:
        self._reasons.setdefault(name, LossReason(name, reason, component, memory))
        _forget_oldest(self._reasons)
        self._news.set()

    # Handlers -----------------------------------------------------------------------------------

    async def reasons_of_loss(self, key: Any, workers: Iterable[str]) -> list[tuple[Any, ...]]:
        """Return :class:`LossReason` fields of lost workers, waiting for reports if necessary."""
        names = list(dict.fromkeys([*self._lost_with.get(key, ()), *workers]))
        loop = asyncio.get_running_loop()
        deadline = loop.time() + REASON_S
        while not all(name in self._reasons for name in names) and loop.time() < deadline:
            self._news.clear()
            try:
                async with asyncio.timeout(deadline - loop.time()):
                    await self._news.wait()
            except TimeoutError:
                break
        unknown = "its manager has reported no reason"
        return [tuple(self._reasons.get(name, LossReason(name, unknown))) for name in names]

    def out_of_memory(self, worker: str, keys: list[Any], used: int, limit: int) -> None:
        """Retry or fail the tasks of a worker that stops for lack of memory.
        Without running tasks (``keys``), the inputs of its next tasks have filled it. Bundles fail
        at once. ``worker`` is an address, and ``used`` and ``limit`` are in bytes.
        """
        state = self._scheduler.workers.get(worker)
        if state is None:
            return
        keys = keys or [task.key for task in begun_on(state, state.processing)]
        if not keys:
            return
        self._counted[str(state.name)] = None
        _forget_oldest(self._counted)
        self._scheduler.log_event(LEAVING_TOPIC, worker)
        component = next(iter(state.resources), "")
        for key in keys:
            task = self._scheduler.tasks.get(key)
            if task is None or task.processing_on is not state:
                continue
            amounts = used, limit, component, len(keys) - 1
            if self._again(task, str(state.name), state.clean(), amounts, counts=True) is None:
                self._count_try(task, str(state.name), state.clean(), amounts)

    def walltime_ends(self, worker: str, left_s: float, walltime_s: float) -> None:
        """Record that the named worker's walltime ends in ``left_s`` seconds."""
        self._walltimes[worker] = time.monotonic() + left_s, walltime_s
        _forget_oldest(self._walltimes)

    def _judge_walltime(
        self, name: str, state: WorkerState, keys: Iterable[Any], end: float, walltime_s: float
    ) -> None:
        """Warn about tasks that used most of a worker's walltime. Fail them the next time."""
        if time.monotonic() < end - EARLY_S:
            return
        since_s = max(0.0, time.time() - state.last_seen)
        for key in keys:
            task = self._scheduler.tasks.get(key)
            ran_s = None if task is None else state.executing.get(task)
            if task is None or ran_s is None or ran_s + since_s < LARGE_PART * walltime_s:
                continue
            call = LoggedTask(task)
            self._cut_off[key] = times = self._cut_off.get(key, 0) + 1
            _forget_oldest(self._cut_off)
            error = WalltimeReached(call.name, name, times - 1, ran_s + since_s, walltime_s)
            if times >= MOST_CUT_OFF and call.bundle is None:
                logger.info("%s", error)
                # Dask assigns its tasks to other workers first.
                asyncio.get_running_loop().call_soon(fail_ready_task, self._scheduler, task, error)
            else:
                logger.warning("%s. It is started again", error)
                event = {"clients": [], "words": f"{error}. It is started again"}
                self._scheduler.log_event(WAITING_TOPIC, event)

    def ended_for_memory(self, workers: Iterable[str]) -> None:
        """Treat the tasks of lost workers as :meth:`out_of_memory` does, unless it was called."""
        for name in set(workers) - self._counted.keys():
            self._ended_for_memory[name] = None
            _forget_oldest(self._ended_for_memory)
            component, limit = self._memories.get(name, ("", 0))
            if not limit:
                continue
            self._know(name, f"it used more than {as_written(limit)}", component, limit)
            keys = [key for key, names in self._lost_with.items() if name in names]
            for key in keys:
                task = self._scheduler.tasks.get(key)
                if task is not None:
                    amounts = limit, limit, component, len(keys) - 1
                    again: bool | None = key not in self._begun.get(name, ())
                    if not again:
                        again = self._again(task, name, name, amounts, counts=False)
                    if again is None:
                        self._count_try(task, name, name, amounts)

    def _again(
        self,
        task: TaskState,
        worker: str,
        shown: Any,
        amounts: tuple[int, int, str, int],
        *,
        counts: bool,
    ) -> bool | None:
        """Retry or fail a task that ran out of memory, or return None without a retry policy."""
        call = LoggedTask(task)
        error = OutOfMemory(call.name, shown, 0, *amounts)
        again = self._retrying.out_of_memory(task, str(error), counts=counts)
        if again is not None:
            self._know(worker, f"it ran out of memory: {error}")
        if again is False:
            fail_ready_task(self._scheduler, task, error)
        return again

    def _count_try(
        self, task: TaskState, worker: str, shown: Any, amounts: tuple[int, int, str, int]
    ) -> None:
        """Count an out-of-memory failure of a task. Fail a retried task or a bundle."""
        call = LoggedTask(task)
        self._too_large[task.key] = tries = self._too_large.get(task.key, 0) + 1
        error = OutOfMemory(call.name, shown, tries - 1, *amounts)
        self._know(worker, f"it ran out of memory: {error}")
        if call.bundle is not None or tries >= MOST_OUT_OF_MEMORY:
            logger.info("%s", error)
            fail_ready_task(self._scheduler, task, error)


def _forget_oldest(entries: dict[Any, Any]) -> None:
    while len(entries) > REMEMBERED:
        del entries[next(iter(entries))]
