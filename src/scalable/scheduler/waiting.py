"""Tasks that no worker can take: reasons for the log, and failures of impossible tasks."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from distributed import Scheduler
from distributed.scheduler import TaskState

from scalable.dask_compat.scheduler import (
    fail_tasks,
    heartbeat_pause_s,
    tasks_no_worker_takes,
)
from scalable.errors import ClusterError, NoWorkersError
from scalable.model import PoolStatus
from scalable.protocol.events import FAILED_START, Event
from scalable.protocol.operations import TAG_ANNOTATION, WAITING_TOPIC
from scalable.protocol.pools import fits, shown
from scalable.scheduler.explaining import ask_of, asked_tag
from scalable.scheduler.pool_facts import PoolReader
from scalable.views import impossible
from scalable.views.explanation import Reason
from scalable.views.pool_reasons import without_workers

logger = logging.getLogger("scalable.scheduler")

#: Seconds for which tasks have to wait before the reason is logged.
WAIT_BEFORE_WORD_S = 2.0
#: Seconds between two messages about the same pool or resource.
REPEAT_WORD_S = 60.0
#: Stands for all clients of the cluster, if the waiting ones are unknown.
EVERYBODY = ""
#: Seconds since the last heartbeat, plus two heartbeat intervals, after which a worker is reported
#: as silent. One message names at most ``NAMED_SILENT`` workers.
SILENT_S = 30.0
NAMED_SILENT = 5


@dataclass
class _Told:
    """Reason reported to clients, its monotonic time, and the clients' ids."""

    why: str
    at: float
    clients: set[str] = field(default_factory=set)


class WaitingCalls:
    """Logs why tasks wait, and fails tasks that can never run."""

    def __init__(self, scheduler: Scheduler, pools: PoolReader) -> None:
        self.scheduler, self._pools = scheduler, pools
        self._silent: set[str] = set()
        self._waiting_since: dict[str, float] = {}
        self._said_at: dict[str, float] = {}
        self._told: dict[str, _Told] = {}

    def event(self, event: Event) -> None:
        """Notify all clients that a worker failed to connect. Its manager logged the failure."""
        if event.get("failure_class") == FAILED_START:
            logger.info("%s", event["message"])
            told = {"clients": [], "words": event["message"]}
            self.scheduler.log_event(WAITING_TOPIC, told)

    def look(self, pools: Mapping[str, PoolStatus]) -> None:
        """Log why tasks are queued, and fail the tasks that no pool can ever run."""
        self._pools.look(pools)
        waiting: dict[str, list[TaskState]] = {}
        for task in tasks_no_worker_takes(self.scheduler):
            waiting.setdefault(asked_tag(task, pools), []).append(task)
        now = time.monotonic()
        self._name_silent_workers()
        for tag in waiting.keys() - self._waiting_since.keys():
            logger.debug("%d tasks start to wait for %s", len(waiting[tag]), shown(tag))
        self._waiting_since = {t: self._waiting_since.get(t, now) for t in waiting}
        said = self._said_at.items()
        self._said_at = {about: at for about, at in said if now - at < REPEAT_WORD_S}
        if not waiting:
            self._told.clear()
        for tag, tasks in waiting.items():
            if now - self._waiting_since[tag] >= WAIT_BEFORE_WORD_S:
                self._explain(tag, self._without_impossible(tasks, pools, now), pools, now)

    def _without_impossible(
        self, tasks: Iterable[TaskState], pools: Mapping[str, Any], now: float
    ) -> list[TaskState]:
        """Fail the tasks whose restrictions no worker can meet, and return the others."""
        others = []
        for task in tasks:
            ask = ask_of(task, self.scheduler, pools)
            if ask.apart:
                self._fail([task], ClusterError(impossible.apart(ask.apart)))
            elif ask.unable:
                words = impossible.unable(ask.restricted_to, ask.unable)
                self._fail([task], ClusterError(words))
            else:
                others.append(task)
                for address in ask.gone:
                    words = f"tasks wait for {impossible.worker_gone(address)}"
                    self._say(address, words, [task], now)
        return others

    def _name_silent_workers(self) -> None:
        workers = self.scheduler.workers.values()
        most_s = SILENT_S + 2 * heartbeat_pause_s(len(workers))
        before = time.time() - most_s
        silent = {str(ws.name) for ws in workers if ws.last_seen < before}
        if new := sorted(silent - self._silent):
            names = ", ".join(new[:NAMED_SILENT])
            more = f" and {len(new) - NAMED_SILENT} others" if len(new) > NAMED_SILENT else ""
            logger.warning(
                "no heartbeat for %.0f s of %s%s: stopped, or a task holds the GIL",
                most_s,
                names,
                more,
            )
        self._silent = silent

    def _explain(
        self, tag: str, tasks: list[TaskState], pools: Mapping[str, PoolStatus], now: float
    ) -> None:
        asks = (ask_of(task, self.scheduler, pools) for task in tasks)
        for resource in sorted({name for ask in asks for name in ask.not_offered}):
            words = f"tasks wait for {impossible.not_offered(resource)}"
            self._say(resource, words, tasks, now)
        pool = self._pools.facts(tag, pools)
        cause = without_workers(pool)
        if tag not in pools:
            asked = [t for t in tasks if TAG_ANNOTATION in (t.annotations or {})]
            words = impossible.no_pool(tag, pools, managed=bool(pools))
            self._fail(asked, NoWorkersError(words))
            return
        slots = pools[tag].slots
        asked = [t for t in tasks if tag in (t.resource_restrictions or {})]
        large = [t for t in asked if not fits(t.resource_restrictions, tag, slots)]
        self._fail(large, ClusterError(impossible.too_many_slots(tag, slots)))
        if cause is not None and cause.reason is Reason.MANAGER_FAILS:
            self._fail(tasks, NoWorkersError(impossible.degraded(tag, cause.words)))
        elif cause is not None:
            waiting = "1 task waits" if len(tasks) == 1 else f"{len(tasks)} tasks wait"
            # Without the durations in the words, which would make each message a new one.
            why = f"{cause.reason} {pools[tag].waiting or ''}"
            self._say(tag, f"{waiting} for {shown(tag)}: {cause}", tasks, now, why=why)

    def _say(
        self, about: str, words: str, tasks: list[TaskState], now: float, *, why: str = ""
    ) -> None:
        """Log ``words`` about waiting tasks, and notify each client once per reason (``why``)."""
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

    def _fail(self, tasks: Iterable[TaskState], error: ClusterError) -> None:
        failing = list(tasks)
        for task in failing:
            logger.error("task %s fails: %s", task.key, error)
        fail_tasks(self.scheduler, failing, error)


def _clients_of(tasks: Iterable[TaskState]) -> set[str]:
    """Return the ids of the clients waiting for tasks, or ``EVERYBODY`` if some are unknown."""
    clients: set[str] = set()
    for task in tasks:
        wanting = {client.client_key for client in task.who_wants or ()}
        # A client of this name belongs to a worker: the user waits for the task that waits.
        unknown = not wanting or any("-worker-" in client for client in wanting)
        clients |= {EVERYBODY} if unknown else wanting
    return clients
