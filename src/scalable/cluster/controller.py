"""The scheduler's side of the pools: what is wanted, what is there, and why a call waits."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

from distributed import Scheduler, SchedulerPlugin
from distributed.protocol.pickle import dumps
from distributed.scheduler import TaskState
from distributed.versions import get_versions
from tornado.ioloop import PeriodicCallback

from scalable.cluster.drain import Drain
from scalable.cluster.pools import UNTAGGED
from scalable.errors import ClusterError

logger = logging.getLogger("scalable.cluster")

#: Annotation of a task that carries the tag which the client could not check itself.
TAG_ANNOTATION = "scalable_tag"
CHECK_INTERVAL_S = 1.0
WAIT_BEFORE_WORD_S = 2.0
REPEAT_WORD_S = 60.0
REMEMBERED_LOSSES = 1000
SILENT_S = 30.0
COMPARED = frozenset({"python", "dask", "distributed", "msgpack", "cloudpickle"})


def describe_pools(pools: Mapping[str, Any]) -> str:
    """Known tags for a message."""
    return ", ".join(sorted(repr(tag) for tag in pools if tag)) or "none"


class Controller(SchedulerPlugin):
    """Knows the pools, drains workers, and lets no call wait in silence.

    Managers report their pools with each heartbeat; clients ask which pools there are.
    """

    name = "scalable-controller"
    idempotent = True

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self._reports: dict[str, dict[str, dict[str, Any]]] = {}
        self._drains: dict[str, Drain] = {}
        self._names = {a: str(ws.name) for a, ws in scheduler.workers.items()}
        self._lost_with: dict[str, tuple[Any, ...]] = {}
        self._barred: set[str] = set()
        self._silent: set[str] = set()
        self._differences: set[str] = set()
        self._waiting_since: dict[str, float] = {}
        self._said_at: dict[str, float] = {}
        scheduler.handlers.update(
            {
                "scalable_heartbeat": self.heartbeat,
                "scalable_pools": self.pools,
                "scalable_load": self.load,
                "scalable_drain": self.drain,
                "scalable_bar": self.bar,
                "scalable_admit": self.admit,
                "scalable_resume": self.resume,
                "scalable_forgive": self.forgive,
            }
        )
        # Clients look here first: asking a scheduler without us would put a traceback in its log.
        scheduler.set_metadata(keys=[self.name], value=True)
        self._check = PeriodicCallback(self._look_at_waiting, CHECK_INTERVAL_S * 1000)
        self._check.start()

    async def close(self) -> None:
        """Stop with the scheduler."""
        self._check.stop()
        for drain in self._drains.values():
            drain.abandon()

    # For managers -------------------------------------------------------------------------------

    def heartbeat(self, manager: str, pools: dict[str, dict[str, Any]]) -> dict[str, Any]:
        """Take a manager's report; answer with the connected workers, by name."""
        self._reports[manager] = pools
        prefixes = self.scheduler.task_prefixes.values()
        return {
            "workers": self._views(),
            "longest_s": max((p.duration_average for p in prefixes), default=0.0),
        }

    def _views(self) -> dict[str, dict[str, Any]]:
        return {
            str(ws.name): {
                "address": ws.address,
                "processing": len(ws.processing),
                "occupancy": ws.occupancy,
                "nbytes": ws.nbytes,
                "drain": drain.state if (drain := self._drains.get(ws.address)) else None,
            }
            for ws in self.scheduler.workers.values()
        }

    def drain(self, workers: Iterable[str]) -> None:
        """Begin to empty workers, by name. Idempotent; unknown names are ignored."""
        for ws in self._named(workers):
            if ws.address not in self._drains:
                self._drains[ws.address] = Drain(self.scheduler, ws)

    def bar(self, workers: Iterable[str]) -> list[str]:
        """Give these workers nothing to run if they connect after all; returns those that did.

        A unit that is ended while it starts may still connect. It would be given the whole queue,
        and its end would count against every call in it.
        """
        names = set(workers)
        self._barred |= names
        return [str(ws.name) for ws in self._named(names)]

    def admit(self, workers: Iterable[str]) -> None:
        """Let workers of these names connect again."""
        self._barred.difference_update(workers)

    def resume(self, workers: Iterable[str]) -> None:
        """Let draining workers accept work again, where it is not too late."""
        for ws in self._named(workers):
            drain = self._drains.get(ws.address)
            if drain is not None and drain.cancel():
                del self._drains[ws.address]

    def forgive(self, workers: Iterable[str]) -> None:
        """Do not count the loss of these workers against the calls that ran on them.

        Dask gives a call up at the fourth lost worker.
        """
        for name in workers:
            for key in self._lost_with.pop(name, ()):
                task = self.scheduler.tasks.get(key)
                if task is not None and task.suspicious:
                    task.suspicious -= 1

    def log_event(self, topic: Any, msg: Any) -> None:
        """Remember which calls a lost worker took with it."""
        if topic == "all" and isinstance(msg, dict) and msg.get("action") == "remove-worker":
            name = self._names.pop(msg["worker"], None)
            if name is not None and not msg["expected"]:
                self._lost_with[name] = tuple(msg["processing-tasks"])
                while len(self._lost_with) > REMEMBERED_LOSSES:
                    del self._lost_with[next(iter(self._lost_with))]

    def add_worker(self, scheduler: Scheduler, worker: str) -> None:
        """Learn a worker's name: when it is lost only its address is known."""
        name = self._names[worker] = str(scheduler.workers[worker].name)
        self._compare_versions(name, scheduler.workers[worker].versions)
        if name in self._barred:
            self.drain([name])

    def _compare_versions(self, name: str, theirs: Mapping[str, Any]) -> None:
        """Name what differs between a worker's software and ours: calls travel as pickles."""
        told = theirs.get("packages") or {}
        differing = [
            f"{package} {told[package]} there, {version} here"
            for package, version in self._packages.items()
            if package in COMPARED and told.get(package) not in (None, version)
        ]
        if differing and (words := "; ".join(differing)) not in self._differences:
            self._differences.add(words)
            logger.warning("worker %s has other versions: %s", name, words)

    @cached_property
    def _packages(self) -> Mapping[str, str]:
        packages: Mapping[str, str] = get_versions()["packages"]
        return packages

    def _named(self, names: Iterable[str]) -> list[Any]:
        wanted = set(names)
        return [ws for ws in self.scheduler.workers.values() if str(ws.name) in wanted]

    def remove_worker(self, scheduler: Scheduler, worker: str, **_: Any) -> None:
        """Forget the draining of a worker that left."""
        drain = self._drains.pop(worker, None)
        if drain is not None and drain.state != "done" and worker not in scheduler.workers:
            drain.state = "done"

    # For clients --------------------------------------------------------------------------------

    def pools(self) -> dict[str, dict[str, Any]]:
        """Tag -> counts and slots, summed over managers."""
        merged: dict[str, dict[str, Any]] = {}
        for report in self._reports.values():
            for tag, pool in report.items():
                merged[tag] = _merge(merged[tag], pool) if tag in merged else dict(pool)
        return merged

    def load(self, tag: str) -> int:
        """Slots that the unfinished, ready calls of a pool take; untagged calls under no tag."""
        scheduler = self.scheduler
        count = 0
        for ws in scheduler.workers.values():
            for task in ws.processing:
                count += _slots(task, tag)
        waiting = [*scheduler.unrunnable, *scheduler.queued]
        return count + sum(_slots(task, tag) for task in waiting)

    # Calls that wait ------------------------------------------------------------------------------

    def _look_at_waiting(self) -> None:
        waiting: dict[str, list[TaskState]] = {}
        pools = self.pools()
        for task in self.scheduler.unrunnable:
            waiting.setdefault(self._tag_of(task, pools), []).append(task)
        now = time.monotonic()
        self._name_silent_workers()
        self._waiting_since = {t: self._waiting_since.get(t, now) for t in waiting}
        for tag, tasks in waiting.items():
            if now - self._waiting_since[tag] >= WAIT_BEFORE_WORD_S:
                self._explain(tag, tasks, pools, now)

    @staticmethod
    def _tag_of(task: TaskState, pools: Mapping[str, Any]) -> str:
        """The pool that a call waits for; else what it asks for that no pool is named after."""
        asked = [str((task.annotations or {}).get(TAG_ANNOTATION) or "")]
        asked += [str(resource) for resource in task.resource_restrictions or ()]
        return next((t for t in asked if t and t in pools), next(filter(None, asked), UNTAGGED))

    def _name_silent_workers(self) -> None:
        """Say which workers have not been heard of: they are stopped, or a call holds the GIL."""
        now = time.time()
        silent = {
            str(ws.name) for ws in self.scheduler.workers.values() if now - ws.last_seen > SILENT_S
        }
        for name in silent - self._silent:
            logger.warning(
                "worker %s has been silent for %g s; a call that holds Python's lock does that",
                name,
                SILENT_S,
            )
        self._silent = silent

    def _explain(
        self, tag: str, tasks: list[TaskState], pools: Mapping[str, Mapping[str, Any]], now: float
    ) -> None:
        pool = pools.get(tag)
        for resource in sorted(self._not_offered(tasks, pools)):
            words = f"calls wait for resource {resource!r}, which no worker offers"
            self._say(resource, words, now)
        if pool is None:
            asked = [t for t in tasks if TAG_ANNOTATION in (t.annotations or {})]
            self._fail(asked, f"no pool {tag!r}; known tags: {describe_pools(pools)}")
            return
        large = [t for t in tasks if (t.resource_restrictions or {}).get(tag, 0) > pool["slots"]]
        self._fail(large, f"no worker of pool {tag!r} has more than {pool['slots']} slots")
        alive = pool["running"] + pool["launching"]
        if pool["reason"] is not None and not alive:
            self._fail(tasks, f"{_shown(tag)} is degraded: {pool['reason']}")
        elif not pool["running"]:
            self._say(tag, f"{len(tasks)} calls wait for {_shown(tag)}: {_why(tag, pool)}", now)

    def _not_offered(self, tasks: Iterable[TaskState], pools: Mapping[str, Any]) -> set[str]:
        return {
            str(resource)
            for task in tasks
            for resource in task.resource_restrictions or ()
            if resource not in pools and not self.scheduler.resources.get(resource)
        }

    def _say(self, tag: str, words: str, now: float) -> None:
        if now - self._said_at.get(tag, -REPEAT_WORD_S) >= REPEAT_WORD_S:
            self._said_at[tag] = now
            logger.warning("%s", words)

    def _fail(self, tasks: Iterable[TaskState], message: str) -> None:
        error = ClusterError(message)
        recommendations = {}
        for task in list(tasks):
            logger.error("call %s fails: %s", task.key, message)
            recommendations.update(
                self.scheduler.transition(
                    task.key,
                    "erred",
                    exception=dumps(error),
                    exception_text=repr(error),
                    cause=task.key,
                    stimulus_id="scalable-cannot-run",
                )
            )
        if recommendations:
            self.scheduler.transitions(recommendations, "scalable-cannot-run")


def _slots(task: TaskState, tag: str) -> int:
    restrictions = task.resource_restrictions or {}
    if tag == UNTAGGED:
        return 0 if restrictions else 1
    return int(restrictions.get(tag, 0))


def _shown(tag: str) -> str:
    return f"pool {tag!r}" if tag != UNTAGGED else "the pool without a tag"


def _why(tag: str, pool: Mapping[str, Any]) -> str:
    place = f" ({pool['waiting']})" if pool["waiting"] else ""
    if pool["launching"]:
        return f"{pool['launching']} of its workers are starting{place}"
    if pool["wanted"]:
        return f"none of its {pool['wanted']} workers is there yet{place}"
    example = f"scale({tag!r}, 1)" if tag != UNTAGGED else "scale(1)"
    return f"it has no workers; give it some, for example {example}"


def _merge(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    counts = ("wanted", "running", "launching", "draining", "failed")
    return {
        **{name: one[name] + other[name] for name in counts},
        "slots": max(one["slots"], other["slots"]),
        "reason": one["reason"] or other["reason"],
        "waiting": one["waiting"] or other["waiting"],
    }
