"""A cluster of pools: one scheduler, workers of different shape, and a reconciler."""

from __future__ import annotations

import logging
import secrets
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Self

from distributed import Scheduler, Security
from distributed.core import Status
from distributed.deploy.cluster import Cluster
from distributed.deploy.spec import SpecCluster
from distributed.utils import NoOpAwaitable, import_term

from scalable.errors import ClusterError
from scalable.liveness import identify_process
from scalable.manager.entries import EntryLauncher
from scalable.manager.launcher import Launcher, UnitName
from scalable.manager.pools import Pool, PoolStatus
from scalable.manager.reconciler import Reconciler
from scalable.manager.scheduler_link import RpcLink
from scalable.protocol.events import Event
from scalable.protocol.pools import UNTAGGED
from scalable.scaling.decisions import ScaleDecision
from scalable.scheduler.controller import Controller
from scalable.scheduler.demand import Demand, ScalingListener
from scalable.scheduler.managers import Attachment, Managers
from scalable.scheduler.pool_scheduler import PoolScheduler
from scalable.spec import Starting

if TYPE_CHECKING:
    from scalable.client.attached import AttachedCluster
    from scalable.scheduler.adaptation import PoolAdaptive

logger = logging.getLogger("scalable.embedded")

#: Id of the manager that lives in the same process as the scheduler.
EMBEDDED = "embedded"


class PoolCluster(SpecCluster):
    """Pools of tagged workers on one scheduler.

    It has the surface of Dask's ``SpecCluster``, whose docstring's examples run on it, and keeps
    what it promises: a lost worker is replaced, a crash loop ends and says why, and scaling down
    loses no result and re-runs no call.

    Parameters
    ----------
    workers
        Name -> entry ``{"cls": ..., "options": {...}, "group": [...]}``.
    scheduler
        Entry of the scheduler. By default Dask's, on loopback, with TLS credentials of its own.
    worker
        Entry that ``scale(n)`` makes workers of.
    asynchronous
        Whether it is used with ``await`` inside a running event loop.
    security
        Credentials; by default made for this cluster alone, and kept in memory.
    name
        Shown to people.
    start_timeout
        Seconds that a started unit may take until its workers are connected.
    **kwargs
        As in ``SpecCluster``.

    Examples
    --------
    >>> cluster = PoolCluster()  # doctest: +SKIP
    >>> cluster.add_pool("demeter", {"cls": Worker, "options": {"resources": {"demeter": 1}}})
    >>> cluster.scale("demeter", 2)
    """

    scheduler: Any
    scheduler_comm: Any
    #: Provider of its workers, shown by status; empty where its user gives the workers.
    provider_name = ""
    #: Time and price of starting a worker.
    starting = Starting(startup_s=1.0, billed_least_s=0.0)

    def __init__(
        self,
        workers: Mapping[UnitName, Mapping[str, Any]] | None = None,
        scheduler: Mapping[str, Any] | None = None,
        worker: Mapping[str, Any] | None = None,
        asynchronous: bool = False,
        security: Security | None = None,
        name: str | None = None,
        start_timeout: float = 120.0,
        **kwargs: Any,
    ) -> None:
        self._listeners: list[Callable[[Event], None]] = []
        self.demand = Demand()
        self.managers = Managers()
        self._entries = EntryLauncher()
        self.incarnation = secrets.token_hex(3)
        self.reconciler = Reconciler(
            self.incarnation, on_event=self._publish, start_timeout=start_timeout
        )
        self.inventory = self.reconciler.inventory
        # The manager of this process: attached from the beginning, and for as long as it lives.
        own = Attachment(
            EMBEDDED,
            self.incarnation,
            identity=identify_process(),
            provider=self.provider_name,
            pools={},
            starting=asdict(self.starting),
        )
        self.managers.attach(own, time.monotonic())
        self.add_pools([Pool(UNTAGGED, self._entries, template=worker)])
        scheduler, security = _secured(scheduler, security)
        kwargs.setdefault("silence_logs", logging.WARNING)
        super().__init__(
            workers=dict(workers or {}),
            scheduler=scheduler,
            worker=worker,
            asynchronous=asynchronous,
            security=security,
            name=name,
            **kwargs,
        )

    # SpecCluster keeps its own dictionaries; ours are the reconciler's.

    @property
    def worker_spec(self) -> dict[UnitName, dict[str, Any]]:
        """Name -> entry of every unit that is wanted. It may be changed; then await the cluster."""
        return self.inventory.wanted.spec

    @worker_spec.setter
    def worker_spec(self, entries: Mapping[UnitName, dict[str, Any]]) -> None:
        self.inventory.wanted.spec = dict(entries)

    @property
    def workers(self) -> dict[UnitName, Any]:
        """Name -> what stands for the unit (a Worker, a Nanny, a record of it) where it exists."""
        objects = self._entries.objects
        return {name: objects.get(name, unit) for name, unit in self.inventory.existing().items()}

    @workers.setter
    def workers(self, _: Mapping[UnitName, Any]) -> None:
        pass  # SpecCluster sets an empty dictionary here when it is made

    @property
    def pools(self) -> dict[str, PoolStatus]:
        """Tag -> counts, and why a pool is degraded. The pool without a tag is left out."""
        return {t: s for t, s in self.inventory.status().items() if t != UNTAGGED}

    # Pools --------------------------------------------------------------------------------------

    def add_pool(
        self,
        tag: str,
        template: Mapping[str, Any],
        *,
        slots: int = 1,
        launcher: Launcher | None = None,
        walltime_s: float | None = None,
        task_s: float = 0.0,
    ) -> None:
        """Make a pool known; it starts empty.

        Parameters
        ----------
        tag
            What calls are routed by: the Dask resource that its workers offer.
        template
            Entry of the worker specification that each of its units gets.
        slots
            Calls that one worker runs at once, and the amount of the resource.
        launcher
            Provisions its units; by default the template's class is called in this process.
        walltime_s
            Seconds after which the place ends a unit, or None.
        task_s
            Expected running time of the pool's longest call in seconds; 0 to go by what ran.
        """
        if not tag:
            raise ClusterError("a pool needs a tag")
        pool = Pool(tag, launcher or self._entries, dict(template), slots)
        pool.walltime_s, pool.task_s = walltime_s, task_s
        self.add_pools([pool])

    def add_pools(self, pools: Iterable[Pool]) -> None:
        """Make pools known; they start empty."""
        for pool in pools:
            self.inventory.add_pool(pool)
            self.managers.offer(EMBEDDED, pool.tag, {"slots": pool.slots, **pool.shape})

    def scale(  # type: ignore[override]
        self,
        n: int | str | Mapping[str, int] = 0,
        count: int | None = None,
        memory: str | None = None,
        cores: int | None = None,
    ) -> Any:
        """Set how many workers are wanted; returns before they come or go.

        Parameters
        ----------
        n
            A count for the pool without a tag (or the only pool), a tag, or a mapping of tags to
            counts. Counts are absolute; pools that are not named stay as they are.
        count
            Workers of the tag ``n``.
        memory, cores
            As in ``SpecCluster``, for the pool without a tag.

        Raises
        ------
        ClusterError
            When there is no such pool, or a count is missing or negative; nothing changes then.
        """
        if self.status in (Status.closing, Status.closed):
            return NoOpAwaitable() if self.asynchronous else None
        if isinstance(n, Mapping):
            counts = dict(n)
        elif isinstance(n, str):
            if count is None:
                raise ClusterError(f"how many workers of {n!r}? write scale({n!r}, 3)")
            counts = {n: count}
        else:
            tag = self._only_pool()
            counts = {tag: self._at_least(n, memory, cores)}
        self.want(counts)
        return NoOpAwaitable() if self.asynchronous else None

    def want(
        self, counts: Mapping[str, int], source: str = "manual", reason: str = "scale"
    ) -> None:
        """Set the counts of pools, and say in the record who did and why.

        Pools that follow their load (:meth:`adapt`) do no more.

        Parameters
        ----------
        counts
            Tag -> absolute count.
        source
            ``plan``, ``manual`` or ``decision``.
        reason
            In words.

        Raises
        ------
        ClusterError
            As :meth:`scale` does.
        """
        before = {tag: self.inventory.check(tag, count) for tag, count in counts.items()}
        controller = self.controller
        if controller is not None:
            controller.keep_counts(*counts, why="it was scaled")
        for tag, count in counts.items():
            told = self.demand.totals.get(tag, before[tag])
            self.demand.want(tag, count, before=told, reason=reason, source=source)
        # Not waiting for the next heartbeat: what was asked for is to be seen at once.
        running = {EMBEDDED: {t: s.running for t, s in self.inventory.status().items()}}
        self.demand.share(self.managers.tiers(running, time.monotonic()))
        self.inventory.obey(self.demand.orders(EMBEDDED))
        if controller is not None:
            controller.on_change()

    def apply(self, decision: ScaleDecision) -> Any:
        """Carry out what a scaler decided, on the pools that it names alone.

        What is to be added and removed is relative to what is wanted now. Like :meth:`scale` it
        returns before workers come or go.

        Parameters
        ----------
        decision
            For example of an :class:`~scalable.AdaptiveScaler`.

        Raises
        ------
        ClusterError
            When it names a pool that there is not; nothing changes then.
        """
        pools = {tag: asdict(status) for tag, status in self.pools.items()}
        counts = self.demand.decided(decision, pools)
        self.want(counts, source="decision", reason=decision.reasoning)
        return NoOpAwaitable() if self.asynchronous else None

    @property
    def controller(self) -> Controller | None:
        """What runs beside the scheduler; None before the cluster is started."""
        return getattr(self.scheduler, "plugins", {}).get(Controller.name)

    def _only_pool(self) -> str:
        tagged = [tag for tag in self.inventory.pools if tag != UNTAGGED]
        if self.inventory.pools[UNTAGGED].template is not None or self.inventory.wanted.names(
            UNTAGGED
        ):
            return UNTAGGED
        if len(tagged) == 1:
            return tagged[0]
        if not tagged:
            return UNTAGGED
        known = ", ".join(repr(tag) for tag in sorted(tagged))
        raise ClusterError(f"which pool? this cluster has {known}: write scale(tag, n)")

    def _at_least(self, n: int, memory: str | None, cores: int | None) -> int:
        if memory is not None:
            from scalable.units import parse_bytes

            n = max(n, -(-parse_bytes(memory) // self._memory_per_worker()))
        if cores is not None:
            n = max(n, -(-cores // self._threads_per_worker()))
        return n

    @property
    def _supports_scaling(self) -> bool:  # type: ignore[override]
        return any(pool.template is not None for pool in self.inventory.pools.values())

    async def scale_down(self, workers: Iterable[UnitName]) -> None:
        """Empty and end these units, or those that brought these workers."""
        asked = set(workers)
        units = self.inventory.existing()
        names = [
            name for name, unit in units.items() if name in asked or asked & set(unit.worker_names)
        ]
        leaving = dict.fromkeys([*names, *(name for name in asked if name in self.worker_spec)])
        tags = Counter(
            self.worker_spec[n].get("pool", UNTAGGED) for n in leaving if n in self.worker_spec
        )
        self.inventory.discard(leaving)
        for tag, count in tags.items():
            self.demand.settle(EMBEDDED, tag, count)
        await self._correct_state()

    def adapt(  # type: ignore[override]
        self,
        *bounds: str | int | None,
        minimum: int = 0,
        maximum: int | None = None,
        tag: str | None = None,
        enabled: bool = True,
        **options: Any,
    ) -> PoolAdaptive | None:
        """Let a pool follow its load, as ``adapt(minimum, maximum)`` or ``adapt(tag, ...)``.

        It grows while the time that more workers save is worth what they cost, and gives idle ones
        back; busy ones are never taken. Asked again, the new bounds replace the earlier ones. It
        ends with ``enabled=False``, and when the pool is scaled by hand: the pool then keeps the
        count that it has, or was given.

        Parameters
        ----------
        *bounds
            The tag, which may be left out where there is only one pool; then ``minimum`` and
            ``maximum``.
        minimum, maximum
            Bounds of the count, both included; ``maximum`` None means without an upper bound.
        tag
            The pool.
        enabled
            False for a pool that is to follow its load no more.
        **options
            ``interval`` and ``policy``, see :class:`scalable.scheduler.adaptation.PoolAdaptive`.

        Returns
        -------
        PoolAdaptive or None
            What follows the load, with its last decision.

        Raises
        ------
        ClusterError
            When there is no such pool, or the bounds are none.
        """
        given: list[Any] = list(bounds)
        if given and isinstance(given[0], str):
            tag = given.pop(0)
        minimum = given.pop(0) if given else minimum
        maximum = given.pop(0) if given else maximum
        if given:
            raise TypeError(f"adapt(tag, minimum, maximum) takes no more arguments: {given}")
        tag = self._only_pool() if tag is None else tag
        self.inventory.pool(tag)
        if self.controller is None:
            raise ClusterError("the cluster is not started", hint="await it first")
        return self.controller.adapt(tag, minimum, maximum, enabled=enabled, **options)

    def align(self) -> Any:
        """Do now what is due instead of at the next look.

        Raises
        ------
        ProviderError
            When a place refuses a unit for good.
        """
        return self.sync(self._correct_state_internal)

    # Life ---------------------------------------------------------------------------------------

    async def _start(self) -> None:
        await super()._start()
        if self.reconciler.link is None:
            if self.controller is None:
                controller = Controller(self.scheduler, self.demand, self.managers)
                self.scheduler.add_plugin(controller)
            contact = getattr(self.scheduler, "contact_address", None) or self.scheduler.address
            self._entries.scheduler_address = contact
            self._entries.security = self.security
            self.reconciler.start(RpcLink(self.scheduler_comm, EMBEDDED, self.incarnation))

    def __await__(self) -> Generator[Any, Any, Self]:
        async def aligned() -> Self:
            if self.status == Status.created:
                await self._start()
            await self.scheduler
            await self._correct_state()
            return self

        return aligned().__await__()

    async def _correct_state_internal(self) -> None:
        self._correct_state_waiting = None
        if self.status != Status.running:
            return
        await self.reconciler.align()
        await self._entries.started()
        await self.reconciler.reconcile()

    def _update_worker_status(self, op: str, msg: Any) -> None:
        # SpecCluster's version closes and forgets; the reconciler replaces.
        Cluster._update_worker_status(self, op, msg)  # noqa: SLF001
        self.reconciler.wake()

    async def _close(self) -> None:
        if self.status in (Status.running, Status.failed):
            await self.reconciler.close()
        await super()._close()

    def _publish(self, event: Event) -> None:
        for listener in self._listeners:
            listener(event)

    def on_event(self, listener: Callable[[Event], None]) -> None:
        """Call the listener, in the event loop, with what happens to units and pools."""
        self._listeners.append(listener)

    def on_scaling(self, listener: ScalingListener) -> None:
        """Call the listener with (tag, before, after, reason, source) when a count changes."""
        self.demand.listeners.append(listener)

    @classmethod
    def from_name(  # type: ignore[override]
        cls, name: str, loop: Any = None, asynchronous: bool = False
    ) -> AttachedCluster:
        """Connect to a cluster that runs, by its name, ``provider/name``, id or access file.

        On what it returns ``close()`` only disconnects; ``delete()`` ends the cluster.
        """
        from scalable.client.attached import AttachedCluster

        return AttachedCluster.from_name(name, loop=loop, asynchronous=asynchronous)


def _secured(
    scheduler: Mapping[str, Any] | None, security: Security | None
) -> tuple[dict[str, Any], Security | None]:
    """Give the scheduler credentials of its own, where the caller did not decide otherwise."""
    entry = dict(
        scheduler
        or {"cls": PoolScheduler, "options": {"host": "127.0.0.1", "dashboard": False, "port": 0}}
    )
    cls = entry.get("cls", PoolScheduler)
    if isinstance(cls, str):
        cls = import_term(cls)
    options = dict(entry.get("options", {}))
    given = options.get("security")
    if security is None and isinstance(given, Security):
        security = given
    if isinstance(cls, type) and issubclass(cls, Scheduler) and "security" not in options:
        if security is None and "protocol" not in options:
            security = Security.temporary()
        if security is not None and security.require_encryption:
            options["security"] = security
            options.setdefault("protocol", "tls://")
    return {**entry, "cls": cls, "options": options}, security
