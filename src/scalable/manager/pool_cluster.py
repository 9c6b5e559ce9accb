"""`PoolCluster`: one Dask scheduler with several pools of tagged workers."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from distributed import Scheduler, Security
from distributed.core import Status
from distributed.deploy.cluster import Cluster
from distributed.deploy.spec import SpecCluster
from distributed.utils import NoOpAwaitable, import_term, offload

from scalable.client.attached import AttachedCluster
from scalable.client.client import client_of
from scalable.client.overviews import NOW_S, DisplayedCluster
from scalable.dask_compat import check_version
from scalable.dask_compat.client import close_clients_of
from scalable.dask_compat.cluster import ignore_unread_timeouts
from scalable.errors import ClusterError
from scalable.manager.embedded import EMBEDDED, EmbeddedManager
from scalable.manager.launcher import Launcher, UnitName
from scalable.manager.pools import ManagerSite, Pool
from scalable.model import PoolStatus, Starting
from scalable.model.overview import Overview
from scalable.protocol.addresses import LOOPBACK
from scalable.protocol.code import search_path
from scalable.protocol.credentials import new_security
from scalable.protocol.events import Event
from scalable.protocol.pools import UNTAGGED, known_tags, only_tag, shown, wanted_counts
from scalable.protocol.private_directory import scratch_parent
from scalable.protocol.servers import GuardedHttp, protected
from scalable.scaling.decisions import ScaleDecision
from scalable.scheduler.managers import ScalingListener
from scalable.scheduler.pool_scheduler import PoolScheduler
from scalable.settings import state_dir
from scalable.units import parse_bytes, seconds_of

logger = logging.getLogger("scalable.manager")


class PoolCluster(DisplayedCluster, SpecCluster):
    """Pools of tagged workers on one scheduler.

    The class has the methods of Dask's ``SpecCluster``; the examples in the docstring of
    ``SpecCluster`` also run on a ``PoolCluster``. A lost worker is replaced. A crash loop is
    stopped and reported. Scaling down loses no result and repeats no task.

    Pools start their workers in this process, or through the ``launcher`` given to
    :meth:`add_pool`, an object with the methods of :class:`scalable.manager.launcher.Launcher`.

    Parameters
    ----------
    workers
        Entries ``{"cls": ..., "options": {...}, "group": [...]}`` by unit name, as in
        ``SpecCluster``.
    scheduler
        Entry of the scheduler, as in ``SpecCluster``. The default is a ``PoolScheduler`` on the
        loopback interface with its own TLS credentials.
    worker
        Entry of the workers that ``scale(n)`` adds.
    asynchronous
        Whether the cluster is used with ``await`` inside a running event loop.
    security
        TLS credentials. By default, new credentials are created and kept in memory.
    name
        Display name of the cluster.
    start_timeout
        Time within which the workers of a started unit have to connect, in seconds or as a string
        such as ``"5 min"``.
    **kwargs
        Further parameters of ``SpecCluster``.

    Attributes
    ----------
    manager
        The worker manager in this process. Its attributes are internal.

    Examples
    --------
    >>> cluster = PoolCluster()  # doctest: +SKIP
    >>> cluster.add_pool("demeter", {"cls": Worker, "options": {"resources": {"demeter": 1}}})
    >>> cluster.scale("demeter", 2)
    """

    scheduler: Any
    scheduler_comm: Any
    #: Name of the workers' provider in the status, empty if the user defines the workers.
    _provider_name = ""
    #: Time and price of starting a worker.
    _starting = Starting(startup_s=1.0, billed_least_s=0.0)

    def __init__(
        self,
        workers: Mapping[UnitName, Mapping[str, Any]] | None = None,
        scheduler: Mapping[str, Any] | None = None,
        worker: Mapping[str, Any] | None = None,
        asynchronous: bool = False,
        security: Security | None = None,
        name: str | None = None,
        start_timeout: str | float = 120.0,
        **kwargs: Any,
    ) -> None:
        check_version()
        self._process = os.getpid()
        limit_s = seconds_of("start_timeout", start_timeout)
        self.manager = EmbeddedManager(self._provider_name, self._starting, limit_s)
        untagged = Pool(UNTAGGED, self.manager.entries, template=worker)
        names = ("new_worker_spec", "_new_worker_name")
        if any(getattr(type(self), name) is not getattr(PoolCluster, name) for name in names):
            untagged.new_entry = self.new_worker_spec
        self.manager.add_pools([untagged])
        scheduler, security = secured_entry(scheduler, security)
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
        if not self.asynchronous:
            ignore_unread_timeouts(self)

    # The manager's inventory replaces the dictionaries of SpecCluster.

    @property
    def worker_spec(self) -> dict[UnitName, dict[str, Any]]:
        """Entries of the desired units by name. ``await`` the cluster after a change."""
        return self.manager.inventory.spec

    @worker_spec.setter
    def worker_spec(self, entries: Mapping[UnitName, dict[str, Any]]) -> None:
        self.manager.inventory.spec = dict(entries)

    @property
    def workers(self) -> dict[UnitName, Any]:
        """Objects of the existing units by name. A unit without a Python object has its record."""
        objects = self.manager.entries.objects
        units = self.manager.inventory.existing()
        return {name: objects.get(name, unit) for name, unit in units.items()}

    @workers.setter
    def workers(self, _: Mapping[UnitName, Any]) -> None:
        pass  # SpecCluster's constructor sets an empty dictionary

    @property
    def pools(self) -> dict[str, PoolStatus]:
        """Worker counts of the tagged pools, with a reason if a pool is degraded."""
        return {t: s for t, s in self.manager.inventory.status().items() if t != UNTAGGED}

    # Pools --------------------------------------------------------------------------------------

    def add_pool(
        self,
        tag: str,
        template: Mapping[str, Any],
        *,
        slots: int = 1,
        launcher: Launcher | None = None,
        walltime_s: str | float | None = None,
        task_s: str | float = 0.0,
    ) -> None:
        """Add a pool without workers.

        Parameters
        ----------
        tag
            Tag of the pool: the name of the Dask resource that its workers offer.
        template
            Entry, as in ``worker_spec``, of each unit of the pool.
        slots
            Number of tasks that one worker runs at once, which is also the amount of the Dask
            resource that the worker offers.
        launcher
            Object that starts the pool's units. By default, the template's class is called in this
            process.
        walltime_s
            Time after which the batch system stops a unit, in seconds or as a string such as
            ``"4h"``. None for no limit.
        task_s
            Expected duration of the pool's longest task, written in the same way; 0 to measure it.
        """
        if not tag:
            raise ClusterError("a pool needs a tag")
        pool = Pool(tag, launcher or self.manager.entries, dict(template), slots)
        pool.walltime_s = seconds_of("walltime_s", walltime_s)
        pool.task_s = seconds_of("task_s", task_s)
        self.add_pools([pool])

    def add_pools(self, pools: Iterable[Pool]) -> None:
        """Add pools without workers."""
        self.manager.add_pools(pools)

    def scale(  # type: ignore[override]
        self,
        n: int | str | Mapping[str, int] = 0,
        count: int | str | None = None,
        memory: str | int | None = None,
        cores: int | None = None,
    ) -> Any:
        """Set the desired number of workers, and return before any worker starts or stops.

        Parameters
        ----------
        n
            Number of workers of the untagged pool (or of the only pool); or a tag; or a mapping of
            tags to numbers. Numbers are absolute. Other pools stay as they are.
        count
            Number of workers of the tag ``n``. If ``n`` is a number, this is ``memory``, the second
            argument of ``SpecCluster.scale``.
        memory, cores
            Total memory and cores, as in ``SpecCluster``, for the pool without a tag.

        Raises
        ------
        ClusterError
            When there is no such pool, or a count is missing, negative or not an integer. Nothing
            is changed.
        """
        if self.status in (Status.closing, Status.closed):
            return NoOpAwaitable() if self.asynchronous else None
        if isinstance(n, int):
            n = self._at_least(n, memory if count is None else count, cores)
            count = None
        self.manager.want(wanted_counts(n, count, self._only_pool), *self.manager.origin)
        return NoOpAwaitable() if self.asynchronous else None

    scale_up = scale  # type: ignore[assignment]

    def new_worker_spec(self) -> dict[UnitName, Any]:
        """Return a new name and the entry of another unit for the pool without a tag.

        A subclass may override this method, or Dask's ``_new_worker_name``, to name the units that
        ``scale(n)`` adds, or to give each unit its own entry.

        Raises
        ------
        ClusterError
            When the pool without a tag has no template.
        """
        if self.new_spec is None:
            raise ClusterError(
                "new_worker_spec(): the pool without a tag has no template",
                hint="use scale(tag, n) or add_pool(), or pass worker= to PoolCluster",
            )
        made: dict[UnitName, Any] = super().new_worker_spec()
        self._i += 1  # names are never reused
        return made

    def apply(self, decision: ScaleDecision) -> Any:
        """Apply the decision of a scaler. Other pools stay as they are.

        Additions and removals are relative to the current desired numbers of workers. The
        method returns before any worker starts or stops.

        Parameters
        ----------
        decision
            Decision, for example of an :class:`~scalable.AdaptiveScaler`.

        Raises
        ------
        ClusterError
            When there is no such pool. Nothing is changed.
        """
        counts = self.manager.demand.decided(decision, self.pools)
        self.manager.want(counts, source="decision", reason=decision.reasoning)
        return NoOpAwaitable() if self.asynchronous else None

    @property
    def dashboard_link(self) -> str:
        """URL of the cluster's dashboard with its access token, or empty without a dashboard."""
        if isinstance(self.scheduler, GuardedHttp):
            return self.scheduler.live_page
        return str(super().dashboard_link)

    def get_client(self) -> Any:
        """Return the current client if it belongs to this cluster, or a new `ScalableClient`."""
        return client_of(self)

    async def _present(self) -> Overview | None:
        """Return the current overview (see :meth:`overview`)."""
        controller = self.manager.controller
        return None if controller is None else controller.overviews.present(NOW_S)

    def _only_pool(self) -> str:
        inventory = self.manager.inventory
        tagged = [tag for tag in inventory.pools if tag != UNTAGGED]
        has_untagged = inventory.pools[UNTAGGED].template is not None
        if has_untagged or inventory.names(UNTAGGED) or not tagged:
            return UNTAGGED
        return only_tag(tagged)

    def _at_least(self, n: int, memory: str | int | None, cores: int | None) -> int:
        if memory is not None:
            n = max(n, -(-parse_bytes(memory) // self._memory_per_worker()))
        if cores is not None:
            n = max(n, -(-cores // self._threads_per_worker()))
        return n

    @property
    def _supports_scaling(self) -> bool:  # type: ignore[override]
        return any(pool.template is not None for pool in self.manager.inventory.pools.values())

    async def scale_down(self, workers: Iterable[UnitName]) -> None:
        """Retire and stop units, given names of units or names of their workers."""
        self.manager.discard(workers)
        await self._correct_state()

    def adapt(  # type: ignore[override]
        self,
        *bounds: str | float | type[Any] | None,
        minimum: int = 0,
        maximum: int | None = None,
        tag: str | None = None,
        enabled: bool = True,
        **options: Any,
    ) -> Any:
        """Adapt a pool to its load: ``adapt(minimum, maximum)`` or ``adapt(tag, ...)``.

        The pool grows as long as the time that more workers save is worth their cost. Only idle
        workers are stopped. Another call replaces the bounds. ``enabled=False`` stops adapting and
        keeps the current number of workers. :meth:`scale` stops adapting and sets the given number.

        Parameters
        ----------
        *bounds
            Tag, ``minimum`` and ``maximum``, in this order. The tag may be left out if there is
            only one pool.
        minimum, maximum
            Smallest and largest number of workers; ``maximum=None`` means no upper bound.
        tag
            Tag of the pool.
        enabled
            False to stop adapting the pool.
        **options
            ``interval``, ``wait_count``, ``target_duration`` and ``policy``, see
            :class:`scalable.scheduler.adaptation.PoolAdaptive`; ``minimum_cores``,
            ``maximum_cores``, ``minimum_memory`` and ``maximum_memory``, totals of the pool; and
            ``Adaptive``, a class like Dask's, which may also be the first argument. Such a class
            accepts further options. It treats all workers alike, so it needs a cluster with one
            pool.

        Returns
        -------
        PoolAdaptive or None
            Object that adapts the pool, with its last decision, or an object of the given
            class. None with ``enabled=False``.

        Raises
        ------
        ClusterError
            When there is no such pool, or the bounds are not a range.
        """
        adaptive, tag, minimum, most = read_bounds(bounds, tag, minimum, maximum, options)
        tag = self._only_pool() if tag is None else tag
        minimum, most = within_totals(self.manager.inventory.pool(tag), minimum, most, options)
        if self.manager.controller is None:
            raise ClusterError("the cluster is not started", hint="await it first")
        if self._adaptive is not None:  # of Dask's kind
            self._adaptive.stop()
            self._adaptive = None
        if adaptive is None or not enabled:
            maximum = None if most == math.inf else most
            return self.manager.controller.adapt(tag, minimum, maximum, enabled=enabled, **options)
        if self._only_pool() != tag or len(self.manager.inventory.pools) > 2:
            raise ClusterError(
                f"adapt(Adaptive={adaptive.__name__}) counts all workers alike, and this "
                f"cluster has the pools {known_tags(self.pools)}",
                hint="leave Adaptive out, or give policy=",
            )
        self.manager.controller.adaptation.end(tag, why=f"{adaptive.__name__} adapts it")
        return super().adapt(adaptive, minimum, most, **options)

    def align(self) -> Any:
        """Start missing units and stop undesired ones now, not at the reconciler's next pass.

        Raises
        ------
        ProviderError
            When the batch system or machine refuses a unit permanently.
        """
        return self.sync(self._correct_state_internal)

    # Life ---------------------------------------------------------------------------------------

    async def _start(self) -> None:
        await super()._start()
        # Python 3.12.0 and 3.12.1 start no thread once the main thread has ended, when the first
        # tasks of a script may still be on their way to the scheduler.
        await offload(int)
        self.manager.start(self.scheduler, self.scheduler_comm, self.security)

    def __await__(self) -> Generator[Any, Any, Self]:
        async def aligned() -> Self:
            if self.status == Status.created:
                await self._start()
            await self.scheduler
            await self._correct_state()
            return self

        return aligned().__await__()

    async def _correct_state_internal(self) -> None:
        """Request missing units, and stop units that are no longer desired."""
        self._correct_state_waiting = None
        if self.status == Status.running:
            await self.manager.align()

    def _update_worker_status(self, op: str, msg: Any) -> None:
        # Skips SpecCluster's own version, which closes and forgets a worker that was lost. A worker
        # that came and went before the list of workers was read is not in it.
        if op == "add" or msg in self.scheduler_info["workers"]:
            Cluster._update_worker_status(self, op, msg)  # noqa: SLF001
        self.manager.reconciler.wake()

    def close(self, timeout: float | None = None) -> Any:
        """Stop the cluster. Does nothing in a fork of its process, where Dask calls it at exit."""
        if os.getpid() != self._process:
            return None
        try:
            return super().close(timeout)
        except RuntimeError as error:
            # To end the threads of an event loop, asyncio starts another one, which Python 3.12
            # refuses while it exits. They end with the process.
            if "at interpreter shutdown" not in str(error):
                raise
            logger.debug("the event loop was not closed: %s", error)
            return None

    async def _close(self) -> None:
        await close_clients_of(self, ClusterError("the client's cluster was closed"))
        if self.status in (Status.running, Status.failed):
            await self.manager.reconciler.close()
        await super()._close()
        self._end_updates()

    def on_event(self, listener: Callable[[Event], None]) -> None:
        """Register a function to call with each event of a unit or pool, in the event loop."""
        self.manager.listeners.append(listener)

    def on_scaling(self, listener: ScalingListener) -> None:
        """Register a function to call when a desired number of workers changes.

        The arguments are ``(tag, before, after, reason, source)``.
        """
        self.manager.demand.listeners.append(listener)

    @classmethod
    def from_name(  # type: ignore[override]
        cls, name: str, loop: Any = None, asynchronous: bool = False
    ) -> AttachedCluster:
        """Connect to a running cluster by name, ``provider/name``, id or path of an access file.

        ``close()`` of the returned object only disconnects; ``delete()`` stops the cluster.
        """
        return AttachedCluster.from_name(name, loop=loop, asynchronous=asynchronous)


# Adapting -----------------------------------------------------------------------------------------

#: Options with the cores and the memory of one worker, and functions that read such amounts.
_OPTIONS = {
    "cores": ("nthreads", "ncores", "threads", "cores"),
    "memory": ("memory_limit", "memory"),
}
_AMOUNTS: Mapping[str, Callable[[Any], float]] = {"cores": float, "memory": parse_bytes}


def read_bounds(
    given: tuple[Any, ...], tag: str | None, minimum: Any, maximum: Any, options: dict[str, Any]
) -> tuple[type[Any] | None, str | None, int, Any]:
    """Return the adapting class, the tag and the bounds in the arguments of ``adapt``.
    ``given`` has a class or a tag, ``minimum`` and ``maximum``. Raises TypeError for more.
    """
    rest = list(given)
    adaptive = options.pop("Adaptive", None)
    if rest and isinstance(rest[0], type):
        adaptive = rest.pop(0)
    if rest and isinstance(rest[0], str):
        tag = rest.pop(0)
    minimum = rest.pop(0) if rest else minimum
    maximum = rest.pop(0) if rest else maximum
    if rest:
        raise TypeError(f"adapt(tag, minimum, maximum) takes no more arguments: {rest}")
    return adaptive, tag, minimum or 0, math.inf if maximum is None else maximum


def within_totals(
    pool: Pool, minimum: int, maximum: Any, options: dict[str, Any]
) -> tuple[int, Any]:
    """Narrow the bounds by total cores and memory, which are removed from ``options``.
    Raises ClusterError if the size of one worker is unknown.
    """
    for unit in ("cores", "memory"):
        for bound in ("minimum", "maximum"):
            if (total := options.pop(f"{bound}_{unit}", None)) is None:
                continue
            share = _AMOUNTS[unit](total) / _size(pool, bound, unit)
            if bound == "minimum":
                minimum = max(minimum, math.ceil(share))
            else:
                maximum = min(maximum, math.floor(share))
    return minimum, maximum


def _size(pool: Pool, bound: str, unit: str) -> float:
    """Return the cores, or the memory in bytes, of one worker of a pool."""
    options: Mapping[str, Any] = (pool.template or {}).get("options", {})
    known = [options.get(name) for name in _OPTIONS[unit]]
    known.append(pool.shape.get("cpus" if unit == "cores" else unit))
    for value in filter(None, known):
        with suppress(ValueError, TypeError):
            return _AMOUNTS[unit](value)
    raise ClusterError(
        f"adapt({bound}_{unit}=...): the size of one worker of {shown(pool.tag)} is unknown",
        hint=f"give {bound}=, a number of workers",
    )


# Scheduler entry ----------------------------------------------------------------------------------


def secured_entry(
    scheduler: Mapping[str, Any] | None, security: Security | None
) -> tuple[dict[str, Any], Security | None]:
    """Return a complete scheduler entry, and the given or new TLS credentials."""
    entry = dict(
        scheduler
        or {"cls": PoolScheduler, "options": {"host": LOOPBACK, "dashboard": False, "port": 0}}
    )
    cls = entry.get("cls", PoolScheduler)
    if isinstance(cls, str):
        cls = import_term(cls)
    options = dict(entry.get("options", {}))
    given = options.get("security")
    if security is None and isinstance(given, Security):
        security = given
    ours = isinstance(cls, type) and issubclass(cls, Scheduler)
    if ours:
        # Refused here, because Dask wraps the error of a scheduler that does not start.
        scratch_parent(options.get("local_directory"))
        cls = protected(cls)
    if ours and "security" not in options:
        if security is None and "protocol" not in options:
            security = new_security()
        if security is not None and security.require_encryption:
            options["security"] = security
            options.setdefault("protocol", "tls://")
    return {**entry, "cls": cls, "options": options}, security


# Site ---------------------------------------------------------------------------------------------


def embedded_site(cluster: PoolCluster, log_dir: Path | None) -> ManagerSite:
    """Return the site of the manager in the user's process."""
    return ManagerSite(
        name=str(cluster.name),
        cluster_id=cluster.manager.incarnation,
        manager=EMBEDDED,
        incarnation=cluster.manager.incarnation,
        scheduler=cluster.scheduler.contact_address or cluster.scheduler.address,
        security=cluster.security,
        directory=state_dir() / "embedded" / cluster.manager.incarnation,
        log_dir=log_dir,
        sys_path=search_path(),
    )
