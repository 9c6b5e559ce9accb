"""RPC handlers that our plug-ins add to a Dask scheduler: their names, arguments and answers.

The plug-ins register handlers with :func:`offer`. Other processes call them through
:class:`SchedulerCalls`, so that a type checker finds a wrong name or argument.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import asdict
from enum import StrEnum
from typing import Any, NamedTuple, TypedDict

from scalable.protocol.attachments import AttachAnswer, Attachment
from scalable.protocol.events import Event
from scalable.protocol.heartbeats import HeartbeatAnswer

#: Tag -> status of a pool (its counts, slots and reasons).
Pools = dict[str, dict[str, Any]]


class LossReason(NamedTuple):
    """The reason for which a worker was lost.

    Attributes
    ----------
    name, reason
        Name of the worker, and the reason as text.
    component, memory
        Component of the worker, and its memory in bytes, if its place ended it because it used
        more; otherwise empty and 0.
    """

    name: str
    reason: str
    component: str = ""
    memory: int = 0


class Handler(StrEnum):
    """Name of an RPC handler, as it is registered on the scheduler."""

    # Called by managers
    ATTACH = "scalable_attach"
    HEARTBEAT = "scalable_heartbeat"
    LEAVE = "scalable_leave"
    DRAIN = "scalable_drain"
    RESUME = "scalable_resume"
    WITHHOLD_WORK = "scalable_withhold_work"
    ALLOW_WORK = "scalable_allow_work"
    EXCUSE_LOSSES = "scalable_excuse_losses"
    ENDED_FOR_MEMORY = "scalable_ended_for_memory"
    # Called by clients
    POOLS = "scalable_pools"
    STATUS = "scalable_status"
    OVERVIEW = "scalable_overview"
    WORKERS = "scalable_workers"
    SCALE = "scalable_scale"
    APPLY = "scalable_apply"
    ADAPT = "scalable_adapt"
    SET_BUDGET = "scalable_set_budget"
    END = "scalable_end"
    CREATOR_LIVES = "scalable_creator_lives"
    PROFILE = "scalable_profile"
    EXPLAIN = "scalable_explain"
    CALL = "scalable_call"
    LIVE_PAGE = "scalable_live_page"
    FOLLOW_SLOTS = "scalable_follow_slots"
    UPLOAD_PLACES = "scalable_upload_places"
    REASONS_OF_LOSS = "scalable_reasons_of_loss"
    FAILURES = "scalable_failures"
    LACKS_FILES = "scalable_lacks_files"
    RUN_FILES = "scalable_run_files"
    TAKE_FILES = "scalable_take_files"
    # Called by workers
    BEGIN = "scalable_begin"
    NOTICE = "scalable_notice"
    BUNDLE_BEGUN = "scalable_bundle_begun"
    CODE_TABLE = "scalable_code_table"
    SOURCES = "scalable_sources"
    FILES = "scalable_files"
    CHECKPOINTS = "scalable_checkpoints"
    OUT_OF_MEMORY = "scalable_out_of_memory"
    GIVE_UP = "scalable_give_up"


class Change(TypedDict):
    """The wanted worker counts before and after a change, each as tag -> count."""

    before: dict[str, int]
    after: dict[str, int]


def offer(server: Any, handlers: Mapping[StrEnum, Callable[..., Any]]) -> None:
    """Register handlers on a scheduler or a worker."""
    server.handlers.update({handler.value: function for handler, function in handlers.items()})


class SchedulerCalls:
    """Calls the handlers of one scheduler, with types for arguments and answers.

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

    # For managers -------------------------------------------------------------------------------

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
        charges: Mapping[str, Iterable[Any]] | None = None,
    ) -> HeartbeatAnswer:
        """Send a manager's report, and return the state of its workers and its orders.

        The report contains the pools' counts, the names of known workers, the events since the
        last report, and the charges: name of each unit that its place charges for -> fields of a
        :class:`~scalable.scaling.metering.Charge`, or None if they are not reported.
        """
        answer: HeartbeatAnswer = await self._call(
            Handler.HEARTBEAT,
            manager=manager,
            nonce=nonce,
            pools={tag: dict(pool) for tag, pool in pools.items()},
            workers=list(workers),
            events=list(events),
            charges=None if charges is None else {u: list(c) for u, c in charges.items()},
        )
        return answer

    async def leave(self, manager: str, nonce: str, *, gone: bool) -> None:
        """Announce that a manager is leaving (``gone=False``) or has left (``gone=True``)."""
        await self._call(Handler.LEAVE, manager=manager, nonce=nonce, gone=gone)

    async def drain(self, workers: Mapping[str, str]) -> None:
        """Empty workers, so that they can be stopped without loss.

        Parameters
        ----------
        workers
            Name of each worker -> reason for the user.
        """
        await self._call(Handler.DRAIN, workers=dict(workers))

    async def resume(self, workers: Iterable[str]) -> list[str]:
        """Let draining workers accept work again, unless they are about to retire.

        Returns
        -------
        list of str
            The names of the workers that accept work.
        """
        return list(await self._call(Handler.RESUME, workers=list(workers)))

    async def withhold_work(self, units: Iterable[Iterable[str]]) -> list[str]:
        """Give no work to the workers of these units, unless a worker of the unit is connected.

        Parameters
        ----------
        units
            Names of the workers of each unit.

        Returns
        -------
        list of str
            Names of the workers that are connected. Their units are left as they are.
        """
        names = [list(unit) for unit in units]
        return list(await self._call(Handler.WITHHOLD_WORK, units=names))

    async def allow_work(self, workers: Iterable[str]) -> None:
        """Undo :meth:`withhold_work` for these names."""
        await self._call(Handler.ALLOW_WORK, workers=list(workers))

    async def excuse_losses(self, workers: Iterable[str]) -> None:
        """Do not count the loss of these workers against the calls that ran on them."""
        await self._call(Handler.EXCUSE_LOSSES, workers=list(workers))

    async def ended_for_memory(self, workers: Iterable[str]) -> None:
        """Tell that the place has ended these workers because they used too much memory."""
        await self._call(Handler.ENDED_FOR_MEMORY, workers=list(workers))

    # For clients --------------------------------------------------------------------------------

    async def pools(self) -> Pools:
        """Return tag -> status of every pool."""
        answer: Pools = await self._call(Handler.POOLS)
        return answer

    async def status(self) -> dict[str, Any]:
        """Return the state of the cluster, its pools and its managers."""
        answer: dict[str, Any] = await self._call(Handler.STATUS)
        return answer

    async def overview(
        self,
        since: int | None = None,
        kinds: Iterable[str] | None = None,
        fresh_s: float | None = None,
    ) -> dict[str, Any]:
        """Return the overview of the cluster, and its events.

        Parameters
        ----------
        since
            Number of the last event that the caller has, 0 for all; None for no events.
        kinds
            Kinds of events: ``decisions``, ``failures``, ``spans``, ``samples``; None for all.
        fresh_s
            Seconds that the overview may be old; None for half a second.
        """
        wanted: dict[str, Any] = {} if kinds is None else {"kinds": list(kinds)}
        wanted |= {} if fresh_s is None else {"fresh_s": fresh_s}
        answer: dict[str, Any] = await self._call(Handler.OVERVIEW, since=since, **wanted)
        return answer

    async def workers(self, tag: str | None = None, first: int = 0) -> dict[str, Any]:
        """Return the number of workers (of a pool), and the overviews of at most 250 of them.

        Parameters
        ----------
        tag
            Tag of the pool, "" for workers without a tag; None for all workers.
        first
            Number of workers that are left out at the beginning.
        """
        answer: dict[str, Any] = await self._call(Handler.WORKERS, tag=tag, first=first)
        return answer

    async def scale(
        self, counts: Mapping[str, int], *, source: str = "manual", reason: str = "scale"
    ) -> Change:
        """Set the wanted worker counts of some pools; return the counts before and after."""
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
        """Add workers to some pools and remove workers from others.

        The arguments are the fields of a :class:`~scalable.ScaleDecision`.
        """
        answer: Change = await self._call(
            Handler.APPLY, add=dict(add), remove=dict(remove), active=dict(active), reason=reason
        )
        return answer

    async def adapt(
        self,
        tag: str,
        minimum: int = 0,
        maximum: int | None = None,
        *,
        enabled: bool = True,
        **options: Any,
    ) -> None:
        """Make a pool adaptive, or no longer adaptive (``enabled=False``).

        ``options`` are keywords of :meth:`PoolCluster.adapt` whose values can be sent.
        """
        bounds = {"minimum": minimum, "maximum": maximum}
        await self._call(Handler.ADAPT, tag=tag, enabled=enabled, **bounds, **options)

    async def set_budget(self, amount: float) -> dict[str, Any]:
        """Set the cluster's budget; return its costs, as in the status."""
        answer: dict[str, Any] = await self._call(Handler.SET_BUDGET, amount=amount)
        return answer

    async def end(self, reason: str) -> None:
        """End the cluster: managers stop their workers, then the scheduler closes."""
        await self._call(Handler.END, reason=reason)

    async def creator_lives(self) -> None:
        """Report that the process lives with which the cluster ends."""
        await self._call(Handler.CREATOR_LIVES)

    async def profile(self, key: Any) -> dict[str, Any] | None:
        """Return the times and memory of a call that has ended; None for any other call."""
        answer: dict[str, Any] | None = await self._call(Handler.PROFILE, key=key)
        return answer

    async def explain(
        self,
        tag: str | None = None,
        key: Any = None,
        name: str | None = None,
        in_client: Mapping[str, Any] | None = None,
        cluster: str = "",
    ) -> dict[str, Any]:
        """Return why pools and calls wait, or why a call has failed.

        The answer is that of :meth:`scalable.explaining.explanation.Explanations.to_dict`.
        Without arguments it contains all pools and the calls that wait, grouped by reason.

        Parameters
        ----------
        tag, key
            Tag of one pool, or key of one call.
        name
            A tag, a key, the beginning of a key, or the name of a task.
        in_client
            ``key``, ``tag`` and ``before`` (number of calls that go first) of a call that waits in
            its client.
        cluster
            Name of the cluster in a shell, if the advice is to be commands for one.
        """
        asked: dict[str, Any] = {"tag": tag, "key": key, "name": name, "in_client": in_client}
        asked["cluster"] = cluster
        answer: dict[str, Any] = await self._call(Handler.EXPLAIN, **asked)
        return answer

    async def call(self, key: str, position: int | None = None) -> dict[str, Any]:
        """Return all that is known of one call, as :meth:`.CallView.to_dict` writes it.

        ``key`` is that of the call or of its bundle; ``position`` that of the call in its bundle.
        """
        answer: dict[str, Any] = await self._call(Handler.CALL, key=key, position=position)
        return answer

    async def follow_slots(self, client: str) -> dict[str, int]:
        """Return the number of slots of each tag, and have each change sent to the client."""
        answer: dict[str, int] = await self._call(Handler.FOLLOW_SLOTS, client=client)
        return answer

    async def upload_places(self, tag: str, nbytes: int) -> list[str]:
        """Return the addresses of workers that may get an argument of so many bytes for a tag."""
        answer: list[str] = await self._call(Handler.UPLOAD_PLACES, tag=tag, nbytes=nbytes)
        return answer

    async def live_page(self) -> str:
        """Return the link to the live page with its token; empty if there is no page."""
        answer: str = await self._call(Handler.LIVE_PAGE)
        return answer

    async def lacks_files(self, digest: str) -> bool:
        """Return whether the scheduler needs the archive with this digest."""
        return bool(await self._call(Handler.LACKS_FILES, digest=digest))

    async def take_files(self, digest: str, part: int, parts: int, data: bytes) -> None:
        """Give the scheduler one part of an archive."""
        await self._call(Handler.TAKE_FILES, digest=digest, part=part, parts=parts, data=data)

    async def run_files(self, known: Mapping[str, int]) -> dict[str, Any]:
        """Return the name of the run, and what is added to its files beyond the known sizes."""
        answer: dict[str, Any] = await self._call(Handler.RUN_FILES, known=dict(known))
        return answer

    # For workers --------------------------------------------------------------------------------

    async def begin(self, worker: str) -> bool:
        """Announce that a worker begins; return False if one of the same name has begun before."""
        return bool(await self._call(Handler.BEGIN, worker=worker))

    async def notice(self, worker: str, left_s: float, reason: str) -> None:
        """Tell that the machine of a worker is taken back in ``left_s`` seconds."""
        await self._call(Handler.NOTICE, worker=worker, left_s=left_s, reason=reason)

    async def checkpoints(self) -> dict[str, str] | None:
        """Return where calls keep their checkpoints.

        The answer is that of :meth:`scalable.scheduler.checkpoints.CheckpointPlace.prepared`.
        """
        answer: dict[str, str] | None = await self._call(Handler.CHECKPOINTS)
        return answer

    async def bundle_begun(self, key: str, client: str) -> None:
        """Tell a client that a worker is about to start one of its bundles."""
        await self._call(Handler.BUNDLE_BEGUN, key=key, client=client)

    async def code_table(self, code: str) -> dict[str, Any] | None:
        """Return the modules of a code id, as a message; None for an unknown id."""
        answer: dict[str, Any] | None = await self._call(Handler.CODE_TABLE, code=code)
        return answer

    async def sources(self, digests: Iterable[str]) -> dict[str, bytes]:
        """Return digest -> source of a module, for those that clients have sent."""
        answer: dict[str, bytes] = await self._call(Handler.SOURCES, digests=list(digests))
        return answer

    async def files(self, digest: str, part: int) -> tuple[int, bytes] | None:
        """Return the number of parts of an archive, and one part; None if it is not known."""
        answer = await self._call(Handler.FILES, digest=digest, part=part)
        return None if not answer else (int(answer[0]), bytes(answer[1]))

    async def out_of_memory(self, worker: str, keys: Iterable[Any], used: int, limit: int) -> None:
        """Tell that a worker ends because its calls use more memory than it has."""
        await self._call(
            Handler.OUT_OF_MEMORY, worker=worker, keys=list(keys), used=used, limit=limit
        )

    async def give_up(self, worker: str, key: Any) -> None:
        """Have a worker replaced, because a call was interrupted on it and does not end."""
        await self._call(Handler.GIVE_UP, worker=worker, key=key)

    async def failures(self, keys: Iterable[Any]) -> list[Mapping[str, Any]]:
        """Return what is known about failed calls; see :class:`.scheduler.failures.Failures`."""
        return list(await self._call(Handler.FAILURES, keys=list(keys)))

    async def reasons_of_loss(self, key: Any, workers: Iterable[str]) -> list[LossReason]:
        """Return the reason of each loss, for a task's lost workers and for those named."""
        asked = self._call(Handler.REASONS_OF_LOSS, key=key, workers=list(workers))
        return [LossReason(*fields) for fields in await asked]
