"""Retries of failed tasks according to their retry policies.
A task that waits for its retry stays on the scheduler, without a slot or a thread.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from distributed import Scheduler
from distributed.scheduler import TaskState

from scalable.dask_compat.tasks import run_now, take_back
from scalable.model import ComponentSpec, DeploymentSpec, RetryPolicy
from scalable.model.failures import OUT_OF_MEMORY
from scalable.protocol.measured import measured
from scalable.scheduler.task_log import TaskLog, failure_in
from scalable.units import as_written, format_duration
from scalable.views.explanation import NextTry

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

    def next_try(self) -> NextTry:
        left_s = max(0.0, self.until - time.monotonic())
        return NextTry(left_s, self.number, self.of, self.error)


class Retrying:
    """Decides which failed tasks are retried, and holds them until then."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.deployment: DeploymentSpec | None = None
        #: Returns whether the pool of a tag has or will get workers.
        self.may_have_workers: Callable[[str], bool] = lambda tag: bool(
            scheduler.resources.get(tag)
        )
        self._log = TaskLog.of(scheduler)

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
        failure = measured(details.get("startstops")).failure or {}
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
        call = self._log.call(task.key)
        known = None if call.bundle is not None else self.deployment.tasks.get(call.name)
        return None if known is None else known.retries

    def _tries_again(
        self, task: TaskState, policy: RetryPolicy, kinds: Iterable[str], what: str, error: str
    ) -> bool:
        call = self._log.call(task.key)
        failures, call.retries = call.retries + 1, 0
        kinds = tuple(kinds)
        wait_s = policy.wait_s(failures) if policy.covers(kinds) else None
        if wait_s is None:
            logger.debug("task %s %s and is not retried: %s", task.key, what, error)
            return False
        call.retries = failures
        is_memory = OUT_OF_MEMORY in kinds or "MemoryError" in kinds
        tag, why = self._next_pool(task, policy) if is_memory else (None, "")
        shown = error if len(error) <= LONGEST_ERROR else f"{error[:LONGEST_ERROR]}..."
        held = _Held(time.monotonic() + wait_s, failures + 1, policy.count + 1, shown, tag)
        call.held = held
        self._scheduler.loop.call_later(wait_s, self._try, task.key, held)
        logger.info(
            "task %s %s, and waits %s before attempt %d of %d%s: %s",
            task.key, what, format_duration(wait_s), held.number, held.of, why, shown,
        )  # fmt: skip
        return True

    def _next_pool(self, task: TaskState, policy: RetryPolicy) -> tuple[str | None, str]:
        """Return the tag for a retry after an out-of-memory error, and a phrase for the log."""
        tag = self._log.call(task.key).tag
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
        held = self._log.call(task.key).held
        if held is None:
            return False
        if held.tag is not None:
            self._move(task, held.tag)
        return True

    def _move(self, task: TaskState, tag: str) -> None:
        call = self._log.call(task.key)
        if call.tag == tag:
            return
        others = dict(task.resource_restrictions or {})
        slots = others.pop(call.tag or "", 1)
        task.resource_restrictions = {tag: slots, **others}
        call.routed_anew()

    def _try(self, key: Any, held: _Held) -> None:
        call = self._log.find(key)
        if call is not None and call.held is held:
            call.held = None
            run_now(self._scheduler, call.task)


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
