"""RPC handlers that our plug-ins add to a Dask scheduler: their names, arguments and answers.

The scheduler's side offers them with :func:`offer`; everybody else calls them through
:class:`SchedulerCalls`, so that a wrong name or argument is an error of the type checker.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, TypedDict

from scalable.protocol.events import Event

#: Tag -> counts, slots and reasons of a pool.
Pools = dict[str, dict[str, Any]]


class Handler(StrEnum):
    """Name of an RPC handler, as it is registered on the scheduler."""

    # Of managers
    ATTACH = "scalable_attach"
    HEARTBEAT = "scalable_heartbeat"
    LEAVE = "scalable_leave"
    DRAIN = "scalable_drain"
    RESUME = "scalable_resume"
    WITHHOLD_WORK = "scalable_withhold_work"
    ALLOW_WORK = "scalable_allow_work"
    EXCUSE_LOSSES = "scalable_excuse_losses"
    # Of clients
    POOLS = "scalable_pools"
    STATUS = "scalable_status"
    SCALE = "scalable_scale"
    APPLY = "scalable_apply"
    ADAPT = "scalable_adapt"
    END = "scalable_end"
    PROFILE = "scalable_profile"
    LIVE_PAGE = "scalable_live_page"
    FOLLOW_SLOTS = "scalable_follow_slots"
    # Of workers
    BUNDLE_BEGUN = "scalable_bundle_begun"


@dataclass(frozen=True)
class Attachment:
    """Description that a manager gives of itself when it attaches to a scheduler.

    Attributes
    ----------
    manager
        Id: unique in the cluster, and the same when the manager comes back.
    nonce
        Text that no other process of this manager has.
    identity
        Its process, as :func:`scalable.liveness.identify_process` describes it.
    target, provider
        Place where it provisions workers.
    priority
        Rank among the managers: lower numbers are filled first.
    limits
        Tag -> maximum number of workers that it provisions.
    pools
        Tag -> ``slots``, ``cpus``, ``memory`` and ``gpus`` of one of its workers.
    starting
        Fields of :class:`scalable.spec.Starting`; those that are missing have its defaults.
    """

    manager: str
    nonce: str
    identity: Mapping[str, Any] = field(default_factory=dict)
    target: str = ""
    provider: str = ""
    priority: int = 0
    limits: Mapping[str, int] = field(default_factory=dict)
    pools: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    starting: Mapping[str, float] = field(default_factory=dict)


class AttachAnswer(TypedDict):
    """Answer to a manager that wants to attach.

    Attributes
    ----------
    accepted
        Whether the manager may provision workers.
    reason
        Reason for the refusal, or None.
    holder
        ``nonce``, ``identity`` and ``silent_s`` of another process that has the same id, or None.
    """

    accepted: bool
    reason: str | None
    holder: dict[str, Any] | None


class HeartbeatAnswer(TypedDict):
    """Answer to a manager's heartbeat.

    Attributes
    ----------
    known
        Whether the manager is attached; False if another process has its id.
    workers
        Name -> fields of :class:`scalable.manager.decisions.WorkerView`, of the manager's workers.
    longest_s
        Mean running time of the slowest kind of call in seconds, 0 before any has run.
    orders
        Tag -> serial number of the order, and number of workers that the manager must provide.
    end
        Whether the cluster ends, and every unit with it.
    """

    known: bool
    workers: dict[str, dict[str, Any]]
    longest_s: float
    orders: dict[str, tuple[int, int]]
    end: bool


class Change(TypedDict):
    """Wanted counts before and after a change, each as tag -> count."""

    before: dict[str, int]
    after: dict[str, int]


def offer(scheduler: Any, handlers: Mapping[Handler, Callable[..., Any]]) -> None:
    """Register handlers on a scheduler."""
    scheduler.handlers.update({handler.value: function for handler, function in handlers.items()})


class SchedulerCalls:
    """Typed calls of the handlers of one scheduler.

    Parameters
    ----------
    comm
        Dask's ``rpc`` object of the scheduler, or anything whose attributes are coroutine
        functions named after the handlers.
    """

    def __init__(self, comm: Any) -> None:
        self._comm = comm

    def _call(self, handler: Handler, **arguments: Any) -> Awaitable[Any]:
        answer: Awaitable[Any] = getattr(self._comm, handler.value)(**arguments)
        return answer

    # Of managers --------------------------------------------------------------------------------

    async def attach(self, attachment: Attachment, instead_of: str | None = None) -> AttachAnswer:
        """Attach a manager; see :meth:`scalable.scheduler.managers.Managers.attach`."""
        given = asdict(attachment)
        answer: AttachAnswer = await self._call(Handler.ATTACH, **given, instead_of=instead_of)
        return answer

    async def heartbeat(
        self,
        manager: str,
        nonce: str,
        pools: Mapping[str, Mapping[str, Any]],
        workers: Iterable[str],
        events: Iterable[Event],
    ) -> HeartbeatAnswer:
        """Report a manager's pools, the workers it knows, and the events since the last report."""
        answer: HeartbeatAnswer = await self._call(
            Handler.HEARTBEAT,
            manager=manager,
            nonce=nonce,
            pools={tag: dict(pool) for tag, pool in pools.items()},
            workers=list(workers),
            events=list(events),
        )
        return answer

    async def leave(self, manager: str, nonce: str, *, gone: bool) -> None:
        """Announce that a manager is leaving, or has left."""
        await self._call(Handler.LEAVE, manager=manager, nonce=nonce, gone=gone)

    async def drain(self, workers: Iterable[str]) -> None:
        """Drain workers, by name, so that they can be stopped."""
        await self._call(Handler.DRAIN, workers=list(workers))

    async def resume(self, workers: Iterable[str]) -> None:
        """Let draining workers accept work again, unless they are about to retire."""
        await self._call(Handler.RESUME, workers=list(workers))

    async def withhold_work(self, workers: Iterable[str]) -> list[str]:
        """Give workers no work if they connect; return the names of those that are connected."""
        return list(await self._call(Handler.WITHHOLD_WORK, workers=list(workers)))

    async def allow_work(self, workers: Iterable[str]) -> None:
        """Let workers of these names be given work again when they connect."""
        await self._call(Handler.ALLOW_WORK, workers=list(workers))

    async def excuse_losses(self, workers: Iterable[str]) -> None:
        """Do not count the loss of workers as failures of the calls that ran on them."""
        await self._call(Handler.EXCUSE_LOSSES, workers=list(workers))

    # Of clients ---------------------------------------------------------------------------------

    async def pools(self) -> Pools:
        """Return the counts and slots of every pool."""
        answer: Pools = await self._call(Handler.POOLS)
        return answer

    async def status(self) -> dict[str, Any]:
        """Return the state of the cluster, its pools and its managers."""
        answer: dict[str, Any] = await self._call(Handler.STATUS)
        return answer

    async def scale(
        self, counts: Mapping[str, int], *, source: str = "manual", reason: str = "scale"
    ) -> Change:
        """Set wanted counts."""
        answer: Change = await self._call(
            Handler.SCALE, counts=dict(counts), source=source, reason=reason
        )
        return answer

    async def apply(
        self,
        add: Mapping[str, int],
        remove: Mapping[str, int],
        active: Mapping[str, int],
        reason: str,
    ) -> Change:
        """Change wanted counts by the numbers of a :class:`~scalable.ScaleDecision`."""
        answer: Change = await self._call(
            Handler.APPLY, add=dict(add), remove=dict(remove), active=dict(active), reason=reason
        )
        return answer

    async def adapt(
        self, tag: str, minimum: int = 0, maximum: int | None = None, *, enabled: bool = True
    ) -> None:
        """Let a pool follow its load, or stop it from doing so."""
        await self._call(Handler.ADAPT, tag=tag, minimum=minimum, maximum=maximum, enabled=enabled)

    async def end(self, reason: str) -> None:
        """End the cluster."""
        await self._call(Handler.END, reason=reason)

    async def profile(self, key: Any) -> dict[str, Any] | None:
        """Return the numbers of a call that has ended, None for any other."""
        answer: dict[str, Any] | None = await self._call(Handler.PROFILE, key=key)
        return answer

    async def follow_slots(self, client: str) -> dict[str, int]:
        """Return the slots of each tag, and send later changes to a client."""
        answer: dict[str, int] = await self._call(Handler.FOLLOW_SLOTS, client=client)
        return answer

    async def live_page(self) -> str:
        """Return the link to the live page, with the token that opens it; empty without a page."""
        answer: str = await self._call(Handler.LIVE_PAGE)
        return answer

    # Of workers ---------------------------------------------------------------------------------

    async def bundle_begun(self, key: str, client: str) -> None:
        """Tell a client that one of its bundles begins."""
        await self._call(Handler.BUNDLE_BEGUN, key=key, client=client)
