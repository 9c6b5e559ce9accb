"""RPC handlers that scalable's plugins add to a Dask scheduler: names, arguments, answers.

Plugins register handlers with :func:`offer`. Other processes call them through the typed methods of
:class:`SchedulerCalls`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import asdict
from enum import StrEnum
from typing import Any, NamedTuple, TypedDict

from scalable.protocol.code import CodeTable
from scalable.protocol.events import Event
from scalable.protocol.operations import WIRE, WIRE_VERSION
from scalable.protocol.pools import AttachAnswer, Attachment

#: Status of each pool by tag (counts, slots and reasons).
Pools = dict[str, dict[str, Any]]


class LossReason(NamedTuple):
    """Reason for the loss of a worker."""

    name: str
    reason: str
    #: Component of a worker that its backend stopped for using too much memory, otherwise empty.
    component: str = ""
    #: Memory of such a worker in bytes, otherwise 0.
    memory: int = 0


class Handler(StrEnum):
    """Name of an RPC handler on the scheduler."""

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
    """Desired worker counts by tag, before and after a change."""

    before: dict[str, int]
    after: dict[str, int]


def offer(server: Any, handlers: Mapping[StrEnum, Callable[..., Any]]) -> None:
    """Register handlers on a scheduler or a worker."""
    server.handlers.update({handler.value: function for handler, function in handlers.items()})


class SchedulerCalls:
    """Typed calls of one scheduler's handlers. ``comm`` is Dask's ``rpc`` object or like it."""

    def __init__(self, comm: Any) -> None:
        self._comm = comm

    def _call(self, handler: Handler, **arguments: Any) -> Awaitable[Any]:
        answer: Awaitable[Any] = getattr(self._comm, handler.value)(**arguments)
        return answer

    # For managers -------------------------------------------------------------------------------

    async def attach(self, attachment: Attachment, instead_of: str | None = None) -> AttachAnswer:
        """Attach a manager. See :meth:`.scheduler.managers.AttachedManagers.attach`."""
        given = {**asdict(attachment), WIRE: WIRE_VERSION}
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
        """Send a manager's report, and return the answer. See :meth:`.Controller.heartbeat`."""
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

    async def drain(
        self,
        workers: Mapping[str, str],
        walltimes: Mapping[str, tuple[float, float]] | None = None,
    ) -> None:
        """Drain workers for the given reasons. ``walltimes`` has remaining and total seconds."""
        more = (
            {"walltimes": {n: list(times) for n, times in walltimes.items()}} if walltimes else {}
        )
        await self._call(Handler.DRAIN, workers=dict(workers), **more)

    async def resume(self, workers: Iterable[str]) -> list[str]:
        """Make draining workers accept work again, and return the names of accepting workers."""
        return list(await self._call(Handler.RESUME, workers=list(workers)))

    async def withhold_work(self, units: Iterable[Iterable[str]]) -> list[str]:
        """Withhold work from units without a connected worker. Return connected workers' names."""
        names = [list(unit) for unit in units]
        return list(await self._call(Handler.WITHHOLD_WORK, units=names))

    async def allow_work(self, workers: Iterable[str]) -> None:
        """Undo :meth:`withhold_work` for these names."""
        await self._call(Handler.ALLOW_WORK, workers=list(workers))

    async def excuse_losses(self, workers: Iterable[str]) -> None:
        """Do not count the loss of these workers as a failed attempt of their tasks."""
        await self._call(Handler.EXCUSE_LOSSES, workers=list(workers))

    async def ended_for_memory(self, workers: Iterable[str]) -> None:
        """Report that the backend stopped these workers for using too much memory."""
        await self._call(Handler.ENDED_FOR_MEMORY, workers=list(workers))

    # For clients --------------------------------------------------------------------------------

    async def pools(self) -> Pools:
        answer: Pools = await self._call(Handler.POOLS)
        return answer

    async def status(self) -> dict[str, Any]:
        answer: dict[str, Any] = await self._call(Handler.STATUS)
        return answer

    async def overview(
        self,
        since: int | None = None,
        kinds: Iterable[str] | None = None,
        fresh_s: float | None = None,
    ) -> dict[str, Any]:
        """Return the cluster's overview, and its events after number ``since`` (None: no events).
        ``kinds`` are ``decisions``, ``failures``, ``spans`` and ``samples``, by default all. The
        overview is at most ``fresh_s`` seconds old, by default half a second.
        """
        wanted: dict[str, Any] = {} if kinds is None else {"kinds": list(kinds)}
        wanted |= {} if fresh_s is None else {"fresh_s": fresh_s}
        answer: dict[str, Any] = await self._call(Handler.OVERVIEW, since=since, **wanted)
        return answer

    async def workers(self, tag: str | None = None, first: int = 0) -> dict[str, Any]:
        """Return the number of a tag's (None: all) workers, and up to 250 from ``first`` on."""
        answer: dict[str, Any] = await self._call(Handler.WORKERS, tag=tag, first=first)
        return answer

    async def scale(
        self, counts: Mapping[str, int], *, source: str = "manual", reason: str = "scale"
    ) -> Change:
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
        """Apply a :class:`~scalable.ScaleDecision`, whose fields are the arguments."""
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
        """Adapt a pool as :meth:`PoolCluster.adapt` does, or stop adapting it."""
        bounds = {"minimum": minimum, "maximum": maximum}
        await self._call(Handler.ADAPT, tag=tag, enabled=enabled, **bounds, **options)

    async def set_budget(self, amount: float) -> dict[str, Any]:
        """Set the cluster's budget, and return its costs as in the status."""
        answer: dict[str, Any] = await self._call(Handler.SET_BUDGET, amount=amount)
        return answer

    async def end(self, reason: str) -> None:
        """Stop the cluster: managers stop their workers, then the scheduler closes."""
        await self._call(Handler.END, reason=reason)

    async def creator_lives(self) -> None:
        """Report that the creator, the process whose exit stops the cluster, is alive."""
        await self._call(Handler.CREATOR_LIVES)

    async def profile(self, key: Any) -> dict[str, Any] | None:
        """Return the times and memory of a finished task, or None for other tasks."""
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
        """Return explanations of pools and tasks. See :meth:`.Explainer.explain`."""
        asked: dict[str, Any] = {"tag": tag, "key": key, "name": name, "in_client": in_client}
        asked["cluster"] = cluster
        answer: dict[str, Any] = await self._call(Handler.EXPLAIN, **asked)
        return answer

    async def call(self, key: str, position: int | None = None) -> dict[str, Any]:
        """Return a task's view as :meth:`.TaskView.to_dict`. ``key`` may be its bundle's key."""
        answer: dict[str, Any] = await self._call(Handler.CALL, key=key, position=position)
        return answer

    async def follow_slots(self, client: str) -> dict[str, int]:
        """Return the number of slots by tag. Later changes are sent to the client."""
        answer: dict[str, int] = await self._call(Handler.FOLLOW_SLOTS, client=client)
        return answer

    async def upload_places(self, tag: str, nbytes: int) -> list[str]:
        """Return the addresses of workers for the upload of an argument of this size."""
        answer: list[str] = await self._call(Handler.UPLOAD_PLACES, tag=tag, nbytes=nbytes)
        return answer

    async def live_page(self) -> str:
        """Return the dashboard's link with its token, or ``""`` without a dashboard."""
        answer: str = await self._call(Handler.LIVE_PAGE)
        return answer

    async def take_files(self, digest: str, part: int, parts: int, data: bytes) -> bool:
        """Send a part of an archive, and return whether the scheduler needs no other part."""
        asked = {"digest": digest, "part": part, "parts": parts, "data": data}
        return bool(await self._call(Handler.TAKE_FILES, **asked))

    async def run_files(self, known: Mapping[str, int], *, costs: bool = False) -> dict[str, Any]:
        """Return the run's name, and its files' content beyond the known sizes."""
        answer: dict[str, Any] = await self._call(Handler.RUN_FILES, known=dict(known), costs=costs)
        return answer

    # For workers --------------------------------------------------------------------------------

    async def begin(self, worker: str) -> bool:
        """Announce the start of a worker. Returns False if its name was used before."""
        return bool(await self._call(Handler.BEGIN, worker=worker))

    async def notice(self, worker: str, left_s: float, reason: str) -> None:
        """Report that the machine of a worker is preempted in ``left_s`` seconds."""
        await self._call(Handler.NOTICE, worker=worker, left_s=left_s, reason=reason)

    async def checkpoints(self) -> dict[str, str] | None:
        """Return the checkpoint directory. See :meth:`.pool_scheduler.CheckpointPlace.prepared`."""
        answer: dict[str, str] | None = await self._call(Handler.CHECKPOINTS)
        return answer

    async def bundle_begun(self, key: str, client: str) -> None:
        """Notify a client that one of its bundles is about to start."""
        await self._call(Handler.BUNDLE_BEGUN, key=key, client=client)

    async def code_table(self, code: str) -> CodeTable | None:
        """Return the modules of a code id, or None for an unknown id."""
        answer: CodeTable | None = await self._call(Handler.CODE_TABLE, code=code)
        return answer

    async def sources(self, digests: Iterable[str]) -> dict[str, bytes]:
        """Return module sources by digest, as far as clients have sent them."""
        answer: dict[str, bytes] = await self._call(Handler.SOURCES, digests=list(digests))
        return answer

    async def files(self, digest: str, part: int) -> tuple[int, bytes] | None:
        """Return an archive's number of parts and one part, or None if it is unknown."""
        answer = await self._call(Handler.FILES, digest=digest, part=part)
        return None if not answer else (int(answer[0]), bytes(answer[1]))

    async def out_of_memory(self, worker: str, keys: Iterable[Any], used: int, limit: int) -> None:
        """Report that a worker exits because its tasks exceed its memory."""
        await self._call(
            Handler.OUT_OF_MEMORY, worker=worker, keys=list(keys), used=used, limit=limit
        )

    async def give_up(self, worker: str, key: Any) -> None:
        """Request the replacement of a worker whose interrupted task does not stop."""
        await self._call(Handler.GIVE_UP, worker=worker, key=key)

    async def failures(self, keys: Iterable[Any]) -> list[Mapping[str, Any]]:
        """Return the facts about failed tasks. See :class:`.scheduler.pool_scheduler.Failures`."""
        return list(await self._call(Handler.FAILURES, keys=list(keys)))

    async def reasons_of_loss(self, key: Any, workers: Iterable[str]) -> list[LossReason]:
        """Return why a task's workers and the named workers were lost."""
        asked = self._call(Handler.REASONS_OF_LOSS, key=key, workers=list(workers))
        return [LossReason(*fields) for fields in await asked]


# Heartbeats ---------------------------------------------------------------------------------------


class HeartbeatAnswer(TypedDict):
    """Answer to a manager's heartbeat."""

    #: True if this process is attached, False if another process has its id.
    known: bool
    #: Fields of :class:`scalable.manager.units.WorkerView` by worker name.
    workers: dict[str, dict[str, Any]]
    #: Mean running time of the slowest kind of task in seconds, or 0 before any task has run.
    longest_s: float
    #: Maps tags to (serial number of the order, number of workers to provide).
    orders: dict[str, tuple[int, int]]
    #: True if the cluster is stopping, so that the manager must stop all of its workers.
    end: bool
    #: Maps the names of workers that were stopped by the scheduler or announced their exit to their
    #: last addresses. They did not crash.
    dismissed: dict[str, str]
    #: Maps the names of workers lost with tasks to their last addresses: not failed starts.
    lost_at_work: dict[str, str]
    #: True if the scheduler counts costs, so that reports must contain charges.
    counts_costs: bool


def refused_heartbeat() -> HeartbeatAnswer:
    """Return the answer to a manager whose id is used by another attached process."""
    return {
        "known": False,
        "workers": {},
        "longest_s": 0.0,
        "orders": {},
        "end": False,
        "dismissed": {},
        "lost_at_work": {},
        "counts_costs": False,
    }


# Worker calls -------------------------------------------------------------------------------------


class WorkerHandler(StrEnum):
    """Name of an RPC handler on a worker."""

    SHOWN_CALL = "scalable_shown_call"


class WorkerCalls:
    """Typed calls of one worker's handlers. ``comm`` is Dask's ``rpc`` object of the worker."""

    def __init__(self, comm: Any) -> None:
        self._comm = comm

    async def shown_call(self, key: Any = None) -> dict[str, Any]:
        """Return the worker's facts about a task, or an empty dict for Dask's own workers."""
        answer = await getattr(self._comm, WorkerHandler.SHOWN_CALL.value)(key=key)
        return answer if isinstance(answer, dict) else {}
