"""Facts about pools and calls from which explanations are made; times are in seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from scalable.spec import PoolStatus


@dataclass(frozen=True)
class RunningCall:
    """A call that takes slots of a worker.

    Attributes
    ----------
    key, name, worker
        Key and task name of the call, and name of its worker.
    since_s
        Seconds for which the call has run.
    left_s
        Expected seconds until it ends; None if nothing is known about such calls.
    holds
        Whether the call itself waits for other calls and keeps its slots meanwhile.
    """

    key: str
    name: str
    worker: str
    since_s: float
    left_s: float | None = None
    holds: bool = False


@dataclass(frozen=True)
class ManagerFacts:
    """A manager that offers a pool: its id, its state, and seconds since its last message."""

    id: str
    state: str
    silent_s: float


@dataclass(frozen=True)
class AdaptiveFacts:
    """Bounds of an adaptive pool, and the count and the reason of its policy's last decision."""

    minimum: int
    maximum: int | None
    workers: int | None
    reason: str


@dataclass(frozen=True)
class LeavingWorker:
    """A connected worker that takes no more calls, and the reason."""

    name: str
    reason: str


@dataclass(frozen=True)
class PoolFacts:
    """Facts about one pool.

    Attributes
    ----------
    tag
        Tag of the pool; "" for the workers without a tag.
    known_tags
        Tags of all pools.
    status
        Counts of the pool as its managers and the scheduler report them; None if there is no such
        pool.
    connected
        Number of connected workers of the pool, those that leave included.
    managers
        Managers that offer the pool.
    attached
        Number of managers of the cluster, whatever they offer.
    awaits_managers
        Whether the managers that the cluster starts with have not attached yet.
    adaptive
        Facts about its policy; None for a pool that is not adaptive.
    held, way_out
        Reason why the budget does not allow that pools grow, or None, and advice about it.
    ending
        Reason why the cluster ends, or None.
    cluster_name
        Name of the cluster for commands in the advice; "" for advice in Python.
    detached
        Whether the cluster runs in processes of its own, which `scalable resume` starts again.
    wanted_in_all, max_workers
        Number of wanted workers of all pools together, and its limit, or None.
    launching_s, usual_start_s
        Seconds since the first worker that is starting was asked for, or None; seconds that
        workers of this pool usually take to start, or None.
    leaving, paused
        Connected workers that leave, and names of those that are paused for lack of memory.
    busy_slots, slots
        Number of taken slots, and of all slots of the connected workers.
    running
        Some of the calls that take slots, those that run longest first.
    waiting
        Number of ready calls that wait for a slot of the pool.
    in_clients
        Number of slots that calls need which still wait in clients.
    """

    tag: str
    known_tags: tuple[str, ...] = ()
    status: PoolStatus | None = None
    connected: int = 0
    managers: tuple[ManagerFacts, ...] = ()
    attached: int = 0
    awaits_managers: bool = False
    adaptive: AdaptiveFacts | None = None
    held: str | None = None
    way_out: str = ""
    ending: str | None = None
    cluster_name: str = ""
    detached: bool = False
    wanted_in_all: int = 0
    max_workers: int | None = None
    launching_s: float | None = None
    usual_start_s: float | None = None
    leaving: tuple[LeavingWorker, ...] = ()
    paused: tuple[str, ...] = ()
    busy_slots: int = 0
    slots: int = 0
    running: tuple[RunningCall, ...] = ()
    waiting: int = 0
    in_clients: int = 0


@dataclass(frozen=True)
class NeededCall:
    """A call whose result another call needs.

    Attributes
    ----------
    key, name
        Key and task name of the call.
    state
        ``running``, ``assigned`` (it waits on a worker), ``ready`` (no worker has taken it),
        ``waiting`` (for other calls), ``failed`` or ``lost`` (its result is computed again).
    worker
        Name of its worker, or "".
    """

    key: str
    name: str
    state: str
    worker: str = ""


@dataclass(frozen=True)
class Ask:
    """Needs of a call that no worker meets.

    Attributes
    ----------
    slots
        Number of slots that the call takes.
    not_offered
        Resources that no worker offers and that are no pools.
    apart
        Tags of several pools of which the call needs slots on one worker, which no worker offers.
    restricted_to, gone
        Addresses of the workers to which the call is restricted, and those that have left.
    unable
        Resources that the call asks for, if the workers to which it is restricted lack them;
        otherwise empty.
    """

    slots: int = 1
    not_offered: tuple[str, ...] = ()
    apart: tuple[str, ...] = ()
    restricted_to: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    unable: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Failure:
    """The failure of a call.

    Attributes
    ----------
    error, message
        Name of the exception's class, and its message.
    frame
        Innermost line of the user's own code in the traceback, or "".
    worker
        Name or address of the worker, or "".
    lost
        Number of workers that were lost while they ran the call.
    blamed
        Key of the call that failed first, if this call only needed its result; otherwise "".
    """

    error: str
    message: str
    frame: str = ""
    worker: str = ""
    lost: int = 0
    blamed: str = ""


@dataclass(frozen=True)
class NextTry:
    """The next try of a call that has failed.

    Attributes
    ----------
    left_s
        Seconds until then.
    number, of
        Number of the next try, and largest number of tries.
    error
        Error of the last try.
    """

    left_s: float
    number: int
    of: int
    error: str


@dataclass(frozen=True)
class CallFacts:
    """Facts about one call, or about several calls that wait for the same reason.

    Attributes
    ----------
    key, name, tag
        Key (of the oldest call), task name and tag; the tag is "" for a call without one.
    state
        ``needs`` (other calls), ``no-worker``, ``queued``, ``assigned`` (it waits on a worker),
        ``fetching`` (its arguments come to the worker), ``backoff`` (it has failed, and is
        tried again later), ``running``, ``done``, ``failed``,
        ``cancelled``, ``unknown``, ``backlog`` (it waits in its client), ``held`` (in its client,
        for an argument).
    count
        Number of calls.
    bundle
        Number of calls in the bundle that the task is; 0 for a task of one call.
    since_s
        Seconds for which the call has waited or run, or since it ended; None if unknown.
    left_s
        Expected seconds until it ends, or None.
    worker
        Name of its worker, or "".
    needs, needed
        Calls whose results it needs: some of them, and the number of all.
    ask
        Needs that no worker meets.
    next_try
        Next try of a call that has failed and waits for it, or None.
    before, first
        Number of calls that go first on its worker or in the queue, and names of some.
    children, child
        Number of calls that this call has made and that have not ended, and the key of one.
    lends
        Whether its slots are lent to other calls while it waits for its children.
    parent
        Key of the call that has made this call, if that call runs; otherwise "".
    failure
        Failure of the call, or None.
    gone
        Whether the scheduler has forgotten the call, and only its failure is known.
    close
        Known tags and task names that are close to the name of an unknown call.
    cluster_name
        Name of the cluster for commands in the advice; "" for advice in Python.
    pool
        Facts about the pool of its tag, or None where they do not matter.
    """

    key: str
    name: str
    tag: str
    state: str
    count: int = 1
    bundle: int = 0
    since_s: float | None = None
    left_s: float | None = None
    worker: str = ""
    needs: tuple[NeededCall, ...] = ()
    needed: int = 0
    ask: Ask = field(default_factory=Ask)
    next_try: NextTry | None = None
    before: int = 0
    first: tuple[str, ...] = ()
    children: int = 0
    child: str = ""
    lends: bool = False
    parent: str = ""
    failure: Failure | None = None
    gone: bool = False
    close: tuple[str, ...] = ()
    cluster_name: str = ""
    pool: PoolFacts | None = None

    def of_cluster(self, name: str) -> Self:
        """Return the facts with a name of the cluster for commands, also in those of the pool."""
        pool = self.pool and replace(self.pool, cluster_name=name)
        return replace(self, cluster_name=name, pool=pool)
