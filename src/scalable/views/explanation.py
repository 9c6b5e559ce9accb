"""Explanation of a task or a pool, and the facts that it is made of. Times are in seconds."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any, NamedTuple, Self

from scalable.harmless import short_name
from scalable.model import PoolStatus
from scalable.model.overview import RunningTask


class State(StrEnum):
    """State of a task or of a pool.
    A ``queued`` task has its inputs, and a ``blocked`` one waits for them. A pool is ``waiting``
    for workers, or ``ready`` if no task needs more of them.
    """

    QUEUED = "queued"
    BLOCKED = "blocked"
    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    UNKNOWN = "unknown"
    READY = "ready"


class Reason(StrEnum):
    """Machine-readable reason for a state."""

    # Of pools, and of tasks that wait for a worker
    NO_POOL = "no-pool"
    NO_MANAGER = "no-manager"
    MANAGER_STARTS = "manager-starts"
    MANAGER_LOST = "manager-lost"
    MANAGER_FAILS = "manager-fails"
    BUDGET = "budget"
    EMPTY = "empty"
    ADAPTIVE = "adaptive"
    LAUNCHING = "launching"
    PLACE = "place"
    WALLTIME = "walltime"
    LEAVING = "leaving"
    PAUSED = "paused"
    ENDING = "ending"
    READY = "ready"
    # Of queued and blocked tasks
    DEPENDENCIES = "dependencies"
    RESOURCES = "resources"
    SLOTS = "slots"
    RESTRICTION = "restriction"
    FULL = "full"
    PRIORITY = "priority"
    BACKOFF = "backoff"
    HELD_SLOT = "held-slot"
    BACKLOG = "backlog"
    ARGUMENTS = "arguments"
    # Of other tasks
    RUNNING = "running"
    NESTED = "nested"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Explanation:
    """State of a task, of several similar tasks, or of a pool, with the reason."""

    #: Key of the task, words for several tasks, or tag of the pool.
    about: str
    state: State
    reason: Reason
    #: State and reason in one sentence, without a full stop.
    sentence: str
    #: Hint how to change the state; empty if there is nothing to do.
    advice: str = ""
    #: Facts behind the sentence, as plain JSON values. Times are in seconds.
    details: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.sentence}; {self.advice}" if self.advice else self.sentence

    def __repr__(self) -> str:
        return f"<Explanation: {self}>"

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "state": str(self.state), "reason": str(self.reason)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        return cls(**{**data, "state": State(data["state"]), "reason": Reason(data["reason"])})


@dataclass(frozen=True)
class Explanations:
    """Explanations of pools, and of unfinished tasks grouped by reason, the oldest first."""

    pools: tuple[Explanation, ...] = ()
    tasks: tuple[Explanation, ...] = ()

    def __iter__(self) -> Iterator[Explanation]:
        return iter((*self.pools, *self.tasks))

    def __str__(self) -> str:
        return "\n".join(map(str, self))

    def __repr__(self) -> str:
        return f"<Explanations: {self}>"

    def to_dict(self) -> dict[str, Any]:
        return {n: [each.to_dict() for each in getattr(self, n)] for n in ("pools", "tasks")}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        pools, tasks = (tuple(map(Explanation.from_dict, data[n])) for n in ("pools", "tasks"))
        return cls(pools, tasks)


# Keys ---------------------------------------------------------------------------------------------

#: UUID or hash in a key, without its first 8 digits.
_HASH = re.compile(r"(?<=[0-9a-f]{8})(?:-?[0-9a-f]{4}){6}[0-9a-f]*")
_CUT = "..."


def short_key(key: str) -> str:
    """Return a key for a sentence, with a UUID or hash cut, that :func:`means_key` still finds."""
    short = short_name(key)
    return _HASH.sub(_CUT, key, count=1).removesuffix(_CUT) if short == key else short


def means_key(name: str, key: str) -> bool:
    """Return whether a name is a prefix of a key, or its prefix and its end with a cut between."""
    head, _, tail = name.partition(_CUT)
    return key.startswith(head) and key.endswith(tail)


# Facts --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SlotHolder(RunningTask):
    """A task that occupies slots of a worker."""

    #: Expected seconds until it finishes, or None if unknown for such tasks.
    left_s: float | None = None
    #: True if it waits for other tasks while it keeps its slots.
    holds: bool = False


@dataclass(frozen=True)
class PoolFacts:
    """Facts about one pool."""

    #: Tag of the pool; "" for the workers without a tag.
    tag: str
    #: Tags of all pools.
    known_tags: tuple[str, ...] = ()
    #: Counts that managers and the scheduler report, or None if there is no such pool.
    status: PoolStatus | None = None
    #: Managers that offer the pool: ``id``, ``state``, and seconds since the last message
    #: (``silent_s``).
    managers: tuple[Mapping[str, Any], ...] = ()
    #: Number of managers of the cluster, whatever they offer.
    attached: int = 0
    #: True if the managers that the cluster starts with have not attached yet.
    awaits_managers: bool = False
    #: Minimum and maximum (None for no limit) of an adaptive pool, otherwise None; and count (None
    #: before the first decision) and reason of its policy's last decision.
    adaptive: tuple[int, int | None] | None = None
    requested: int | None = None
    decision: str = ""
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
    #: Reasons why connected workers do not accept tasks any more, by their names.
    leaving: Mapping[str, str] = field(default_factory=dict)
    #: Names of the connected workers that are paused for lack of memory.
    paused: tuple[str, ...] = ()
    #: Taken slots of the connected workers; ``slots`` counts all of them.
    busy_slots: int = 0
    slots: int = 0
    #: Some of the tasks that take slots, the longest running first.
    running: tuple[SlotHolder, ...] = ()
    #: Number of its queued tasks, also of those in clients.
    queued: int = 0


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


class NextTry(NamedTuple):
    """Next attempt of a failed task: seconds until it, its number of all, and the last error."""

    left_s: float
    number: int
    of: int
    error: str


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
class TaskFacts:
    """Facts about one task, or about several that wait for the same reason."""

    #: Key of the oldest task.
    key: str
    name: str
    #: Tag of the task; "" for a task without one.
    tag: str
    #: ``needs`` (other tasks), ``no-worker``, ``queued``, ``assigned`` (it waits on a worker),
    #: ``fetching`` (its arguments), ``backoff`` (it is retried later), ``running``, ``done``,
    #: ``failed``, ``cancelled``, ``unknown``, ``backlog`` (it waits in its client), ``held`` (there
    #: too, for an argument), ``lost`` (its result is computed again).
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
    needs: tuple[TaskFacts, ...] = ()
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

    def details(self) -> dict[str, Any]:
        """Return the facts as plain JSON values, without those about the pool."""
        needs = [{n: getattr(each, n) for n in ("key", "name", "state", "worker")}
                 for each in self.needs]  # fmt: skip
        details = asdict(replace(self, needs=(), pool=None)) | {"needs": needs}
        details["next_try"] = self.next_try and self.next_try._asdict()
        del details["pool"]
        return details
