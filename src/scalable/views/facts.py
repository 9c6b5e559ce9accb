"""Facts about pools and tasks for explanations. Times are in seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from scalable.model import PoolStatus


@dataclass(frozen=True)
class RunningTask:
    """A task that occupies slots of a worker."""

    key: str
    name: str
    worker: str
    #: Seconds for which the task has run.
    since_s: float
    #: Expected seconds until it finishes, or None if unknown for such tasks.
    left_s: float | None = None
    #: True if it waits for other tasks while it keeps its slots.
    holds: bool = False


@dataclass(frozen=True)
class ManagerFacts:
    """A manager of a pool: its id, its state, and seconds since its last message."""

    id: str
    state: str
    silent_s: float


@dataclass(frozen=True)
class AdaptiveFacts:
    """Bounds of an adaptive pool, with count and reason of its policy's last decision."""

    minimum: int
    maximum: int | None
    workers: int | None
    reason: str


@dataclass(frozen=True)
class LeavingWorker:
    """A connected worker that does not accept tasks any more, and the reason."""

    name: str
    reason: str


@dataclass(frozen=True)
class PoolFacts:
    """Facts about one pool."""

    #: Tag of the pool; "" for the workers without a tag.
    tag: str
    #: Tags of all pools.
    known_tags: tuple[str, ...] = ()
    #: Counts that managers and the scheduler report, or None if there is no such pool.
    status: PoolStatus | None = None
    #: Number of connected workers of the pool, including those that leave.
    connected: int = 0
    #: Managers that offer the pool.
    managers: tuple[ManagerFacts, ...] = ()
    #: Number of managers of the cluster, whatever they offer.
    attached: int = 0
    #: True if the managers that the cluster starts with have not attached yet.
    awaits_managers: bool = False
    #: Facts about its scaling, or None for a pool that is not adaptive.
    adaptive: AdaptiveFacts | None = None
    #: Reason why the budget does not allow growth, or None; ``way_out`` is a hint about it.
    held: str | None = None
    way_out: str = ""
    #: Reason why the cluster is being stopped, or None.
    ending: str | None = None
    #: Name of the cluster for commands in hints; "" for hints in Python.
    cluster_name: str = ""
    #: True if the cluster runs in its own processes, which `scalable manager restart` starts.
    detached: bool = False
    #: Number of desired workers of all pools together; ``max_workers`` limits it.
    wanted_in_all: int = 0
    max_workers: int | None = None
    #: Option of the target that sets ``max_workers``.
    limited_by: str = "max_workers"
    #: Seconds since the first worker that is starting was requested, or None.
    launching_s: float | None = None
    #: Seconds that workers of this pool usually take to start, or None.
    usual_start_s: float | None = None
    leaving: tuple[LeavingWorker, ...] = ()
    #: Names of the connected workers that are paused for lack of memory.
    paused: tuple[str, ...] = ()
    #: Taken slots of the connected workers; ``slots`` counts all of them.
    busy_slots: int = 0
    slots: int = 0
    #: Some of the tasks that take slots, the longest running first.
    running: tuple[RunningTask, ...] = ()
    #: Number of ready tasks that wait for a slot of the pool.
    waiting: int = 0
    #: Number of slots needed by tasks that still wait in clients.
    in_clients: int = 0


@dataclass(frozen=True)
class NeededCall:
    """A task whose result another task needs."""

    key: str
    name: str
    #: ``running``, ``assigned`` (it waits on a worker), ``ready`` (no worker has taken it),
    #: ``waiting`` (for other tasks), ``failed`` or ``lost`` (its result is computed again).
    state: str
    #: Name of its worker, or "".
    worker: str = ""


@dataclass(frozen=True)
class UnmetNeed:
    """Requirements of a task that no worker meets."""

    #: Number of slots that the task takes.
    slots: int = 1
    #: Resources that no worker offers and that are not pools.
    not_offered: tuple[str, ...] = ()
    #: Tags of pools whose slots the task needs on one worker, although no worker has all of them.
    apart: tuple[str, ...] = ()
    #: Addresses of the workers to which it is restricted. ``gone`` has the departed ones.
    restricted_to: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    #: Requested resources that the workers to which the task is restricted lack.
    unable: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Failure:
    """Failure of a task."""

    #: Name of the exception's class.
    error: str
    message: str
    #: Innermost line of the user's own code in the traceback, or "".
    frame: str = ""
    #: Name or address of the worker, or "".
    worker: str = ""
    #: Number of workers that were lost while they ran the task.
    lost: int = 0
    #: Key of the task that failed first, if this one only needed its result; otherwise "".
    blamed: str = ""


@dataclass(frozen=True)
class NextTry:
    """Next attempt of a failed task."""

    left_s: float
    #: Number of the next attempt; ``of`` is the maximum number of attempts.
    number: int
    of: int
    #: Error of the last attempt.
    error: str


@dataclass(frozen=True)
class CallFacts:
    """Facts about one task, or about several that wait for the same reason."""

    #: Key of the oldest task.
    key: str
    name: str
    #: Tag of the task; "" for a task without one.
    tag: str
    #: ``needs`` (other tasks), ``no-worker``, ``queued``, ``assigned`` (it waits on a worker),
    #: ``fetching`` (its arguments), ``backoff`` (it is retried later), ``running``, ``done``,
    #: ``failed``, ``cancelled``, ``unknown``, ``backlog`` (it waits in its client), ``held`` (there
    #: too, for an argument).
    state: str
    #: Number of tasks.
    count: int = 1
    #: Number of tasks in the bundle; 0 for a single task.
    bundle: int = 0
    #: Seconds for which it has waited or run, or since it finished, or None if unknown.
    since_s: float | None = None
    #: Expected seconds until it finishes, or None.
    left_s: float | None = None
    #: Name of its worker, or "".
    worker: str = ""
    #: Some of the tasks whose results it needs; ``needed`` is the number of all.
    needs: tuple[NeededCall, ...] = ()
    needed: int = 0
    ask: UnmetNeed = field(default_factory=UnmetNeed)
    next_try: NextTry | None = None
    #: Number of tasks ahead on its worker or in the queue; ``first`` names some.
    before: int = 0
    first: tuple[str, ...] = ()
    #: Number of unfinished tasks that it has submitted. ``child`` is the key of one.
    children: int = 0
    child: str = ""
    #: True if its slots are lent to other tasks while it waits for its children.
    lends: bool = False
    #: Key of the task that has submitted it, if that task is running, otherwise "".
    parent: str = ""
    failure: Failure | None = None
    #: True if the scheduler has forgotten the task, and only its failure is known.
    gone: bool = False
    #: Tags and task names that are similar to the name of an unknown task.
    close: tuple[str, ...] = ()
    #: Name of the cluster for commands in hints; "" for hints in Python.
    cluster_name: str = ""
    #: Facts about the pool of its tag, or None where they do not matter.
    pool: PoolFacts | None = None

    def of_cluster(self, name: str) -> Self:
        """Return the facts with the cluster's name for the commands in hints."""
        pool = self.pool and replace(self.pool, cluster_name=name)
        return replace(self, cluster_name=name, pool=pool)
