"""Calls that no worker takes: log why they wait, and fail calls that can never run."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from distributed import Scheduler
from distributed.scheduler import TaskState, WorkerState

from scalable.errors import ClusterError, NoWorkersError
from scalable.protocol.dask_seams.scheduler import fail_tasks, tasks_no_worker_takes
from scalable.protocol.events import FAILED_START, Event
from scalable.protocol.matching import fits
from scalable.protocol.operations import TAG_ANNOTATION, WAITING_TOPIC
from scalable.protocol.pools import UNTAGGED, known_tags, shown
from scalable.spec import PoolStatus

logger = logging.getLogger("scalable.scheduler")

#: Seconds for which calls have to wait before the reason is logged.
WAIT_BEFORE_WORD_S = 2.0
#: Seconds between two messages about the same pool or resource.
REPEAT_WORD_S = 60.0
#: Stands for all clients of the cluster, where the ones that wait are not known.
EVERYBODY = ""
#: Seconds without a heartbeat after which a worker is reported as silent.
SILENT_S = 30.0


@dataclass
class _Told:
    """Reason that clients were told, the time in seconds, and the ids of the clients."""

    why: str
    at: float
    clients: set[str] = field(default_factory=set)


class WaitingCalls:
    """Logs why calls wait, and fails calls that can never run.

    Parameters
    ----------
    scheduler
        Scheduler of the calls.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self._silent: set[str] = set()
        self._waiting_since: dict[str, float] = {}
        self._said_at: dict[str, float] = {}
        self._told: dict[str, _Told] = {}
        self._held: str | None = None
        self._fails = False

    def event(self, event: Event) -> None:
        """Tell all clients of a worker that has not connected; its manager has logged it."""
        if event.get("failure_class") == FAILED_START:
            logger.info("%s", event["message"])
            told = {"clients": [], "words": event["message"]}
            self.scheduler.log_event(WAITING_TOPIC, told)

    def look(
        self, pools: Mapping[str, PoolStatus], *, held: str | None = None, fail: bool = False
    ) -> None:
        """Log why calls wait, and fail the calls that no pool can ever run.

        Parameters
        ----------
        pools
            Tag -> status of the existing pools.
        held
            Reason why the budget does not allow that pools grow, or None.
        fail
            Whether calls fail for that reason instead of waiting.
        """
        self._held, self._fails = held, fail
        waiting: dict[str, list[TaskState]] = {}
        for task in tasks_no_worker_takes(self.scheduler):
            waiting.setdefault(self._tag_of(task, pools), []).append(task)
        now = time.monotonic()
        self._name_silent_workers()
        for tag in waiting.keys() - self._waiting_since.keys():
            logger.debug("%d calls begin to wait for %s", len(waiting[tag]), shown(tag))
        self._waiting_since = {t: self._waiting_since.get(t, now) for t in waiting}
        if not waiting:
            self._told.clear()
        for tag, tasks in waiting.items():
            if now - self._waiting_since[tag] >= WAIT_BEFORE_WORD_S:
                self._explain(tag, self._without_impossible(tasks, pools, now), pools, now)

    def _without_impossible(
        self, tasks: Iterable[TaskState], pools: Mapping[str, Any], now: float
    ) -> list[TaskState]:
        """Fail the calls whose restrictions no worker can ever meet; return the others."""
        others = []
        for task in tasks:
            asked = task.resource_restrictions or {}
            able = [ws for ws in self.scheduler.workers.values() if _offers(ws, asked)]
            tags = [tag for tag in asked if tag in pools]
            named = set() if task.loose_restrictions else task.worker_restrictions or set()
            missing = named - self.scheduler.workers.keys()
            if len(tags) > 1 and not able:
                words = " and ".join(map(shown, tags))
                words = f"it needs slots of {words}, which no worker offers together"
                self._fail([task], ClusterError(words))
            elif named and not missing and not any(ws.address in named for ws in able):
                words = (
                    f"it is restricted to {', '.join(sorted(named))}, without enough of what it "
                    f"needs: {asked}"
                )
                self._fail([task], ClusterError(words))
            else:
                others.append(task)
                for address in sorted(missing):
                    words = f"calls wait for worker {address}, which has left"
                    self._say(address, words, [task], now)
        return others

    @staticmethod
    def _tag_of(task: TaskState, pools: Mapping[str, Any]) -> str:
        """Return the tag of the pool that a call waits for, else the first resource it asks for."""
        asked = [str((task.annotations or {}).get(TAG_ANNOTATION) or "")]
        asked += [str(resource) for resource in task.resource_restrictions or ()]
        return next((t for t in asked if t and t in pools), next(filter(None, asked), UNTAGGED))

    def _name_silent_workers(self) -> None:
        """Warn once about each worker that has sent no heartbeat for ``SILENT_S`` seconds."""
        now = time.time()
        silent = {
            str(ws.name) for ws in self.scheduler.workers.values() if now - ws.last_seen > SILENT_S
        }
        for name in silent - self._silent:
            logger.warning(
                "worker %s has sent no heartbeat for %g s: it is stopped, or a call holds the GIL",
                name,
                SILENT_S,
            )
        self._silent = silent

    def _explain(
        self, tag: str, tasks: list[TaskState], pools: Mapping[str, PoolStatus], now: float
    ) -> None:
        pool = pools.get(tag)
        for resource in sorted(self._not_offered(tasks, pools)):
            words = f"calls wait for resource {resource!r}, which no worker offers"
            self._say(resource, words, tasks, now)
        if pool is None:
            asked = [t for t in tasks if TAG_ANNOTATION in (t.annotations or {})]
            nobody = "" if pools else "; no manager is attached to start workers"
            words = f"no pool {tag!r}; known tags: {known_tags(pools)}{nobody}"
            self._fail(asked, NoWorkersError(words))
            return
        asked = [t for t in tasks if tag in (t.resource_restrictions or {})]
        large = [t for t in asked if not fits(t.resource_restrictions, tag, pool.slots)]
        words = f"it needs more slots than a worker of pool {tag!r} has: {pool.slots}"
        self._fail(large, ClusterError(words))
        if self._held is not None and self._fails:
            self._fail(tasks, NoWorkersError(f"{shown(tag)} has no workers: {self._held}"))
            return
        alive = pool.running + pool.launching
        if pool.reason is not None and not alive:
            self._fail(tasks, NoWorkersError(f"{shown(tag)} is degraded: {pool.reason}"))
        elif not pool.running:
            why = self._why(tag, pool)
            waiting = "1 call waits" if len(tasks) == 1 else f"{len(tasks)} calls wait"
            self._say(tag, f"{waiting} for {shown(tag)}: {why}", tasks, now, why=why)

    def _not_offered(self, tasks: Iterable[TaskState], pools: Mapping[str, Any]) -> set[str]:
        return {
            str(resource)
            for task in tasks
            for resource in task.resource_restrictions or ()
            if resource not in pools and not self.scheduler.resources.get(resource)
        }

    def _say(
        self, about: str, words: str, tasks: list[TaskState], now: float, *, why: str = ""
    ) -> None:
        """Log why tasks wait, and tell each of their clients once for each reason.

        Parameters
        ----------
        about
            Name of what the tasks wait for.
        words
            Message.
        tasks
            The tasks.
        now
            Time in seconds.
        why
            Part of the message that gives the reason; by default the whole message.
        """
        if now - self._said_at.get(about, -REPEAT_WORD_S) >= REPEAT_WORD_S:
            self._said_at[about] = now
            logger.warning("%s", words)
        told = self._told.get(about)
        if told is None or (told.why != (why or words) and now - told.at >= REPEAT_WORD_S):
            told = self._told[about] = _Told(why or words, now)
        clients = _clients_of(tasks)
        if new := clients - told.clients:
            told.clients |= new
            everybody = EVERYBODY in new
            event = {"clients": [] if everybody else sorted(new), "words": words}
            self.scheduler.log_event(WAITING_TOPIC, event)

    def _why(self, tag: str, pool: PoolStatus) -> str:
        if self._held is not None and not pool.launching:
            return self._held
        place = f" ({pool.waiting})" if pool.waiting else ""
        if pool.launching:
            return f"{pool.launching} of its workers are starting{place}"
        if pool.wanted:
            return f"none of its {pool.wanted} workers has connected yet{place}"
        name = getattr(self.scheduler, "cluster_name", "")
        if name and tag != UNTAGGED:
            return f"it has no workers; start some with `scalable scale {name} {tag}=1`"
        example = f"scale({tag!r}, 1)" if tag != UNTAGGED else "scale(1)"
        return f"it has no workers; start some, for example with {example}"

    def _fail(self, tasks: Iterable[TaskState], error: ClusterError) -> None:
        failing = list(tasks)
        for task in failing:
            logger.error("call %s fails: %s", task.key, error)
        fail_tasks(self.scheduler, failing, error)


def _offers(worker: WorkerState, resources: Mapping[str, float]) -> bool:
    return all(worker.resources.get(name, 0) >= amount for name, amount in resources.items())


def _clients_of(tasks: Iterable[TaskState]) -> set[str]:
    """Return the ids of the clients that wait for tasks; ``EVERYBODY`` for unknown ones."""
    clients: set[str] = set()
    for task in tasks:
        wanting = {client.client_key for client in task.who_wants or ()}
        # A client of this name belongs to a worker: the user waits for the call that waits.
        unknown = not wanting or any("-worker-" in client for client in wanting)
        clients |= {EVERYBODY} if unknown else wanting
    return clients
