"""`AttachedCluster`: the connection to a cluster that runs in its own processes."""

from __future__ import annotations

import asyncio
import logging
import math
import time
import weakref
from collections import Counter
from collections.abc import Coroutine, Generator, Iterable, Mapping
from contextlib import suppress
from typing import Any, Self

from distributed.core import Status, rpc
from distributed.deploy.cluster import Cluster
from distributed.utils import NoOpAwaitable

from scalable.client.client import client_of
from scalable.client.overviews import ANSWER_S, NOW_S, DisplayedCluster
from scalable.dask_compat import check_version
from scalable.dask_compat.cluster import loop_runs, start_loop
from scalable.errors import ClusterError
from scalable.model.clusters import PoolStatus, pools_from_dict
from scalable.model.overview import Overview
from scalable.protocol.credentials import security_of
from scalable.protocol.handlers import Handler, request
from scalable.protocol.pools import only_tag, wanted_counts
from scalable.protocol.streams import listens
from scalable.records import AccessFile, find_access
from scalable.scaling.decisions import ScaleDecision

logger = logging.getLogger("scalable.client")

CONNECT_TIMEOUT_S = 15.0
DELETE_TIMEOUT_S = 60.0
POLL_S = 0.1
#: Seconds without an answer after which the scheduler's port is checked.
SILENT_S = 0.5
#: Options of ``adapt`` that can be sent to a scheduler in another process.
ADAPT_OPTIONS = frozenset({"interval", "wait_count", "target_duration"})
#: Seconds for which an answer of the scheduler about its workers is reused.
LOOK_AGAIN_S = 0.2


class AttachedCluster(DisplayedCluster, Cluster):
    """A connection to a cluster that runs in its own processes.

    Closing the connection leaves the cluster running, unless ``owner`` is true.

    Parameters
    ----------
    access
        Address of the cluster, and its credentials.
    asynchronous
        Whether the object is used with ``await`` inside a running event loop.
    loop
        Event loop to use.
    owner
        Whether ``close()`` deletes the cluster too.
    """

    scheduler_comm: Any

    def __init__(
        self,
        access: AccessFile,
        *,
        asynchronous: bool = False,
        loop: Any = None,
        owner: bool = False,
    ) -> None:
        check_version()
        self.id = access.id
        self.tasks, self.labels, self.tags = access.tasks, access.labels, access.tags
        self._owner = owner
        self._address = access.address
        self._pools: dict[str, PoolStatus] = {}
        self._live_page = ""
        self._looked_at = 0.0
        self._looking: set[asyncio.Task[None]] = set()
        super().__init__(asynchronous=asynchronous, loop=loop, name=access.name, quiet=True)
        self.security = security_of(access.pem)
        if not self.asynchronous:
            start_loop(self)
            self.sync(self._start)

    @classmethod
    def from_name(cls, name: str, loop: Any = None, asynchronous: bool = False) -> Self:
        """Connect to a running cluster.

        Parameters
        ----------
        name
            Name of the cluster, ``provider/name``, its id or a prefix of its id, or the path
            of an access file.
        loop, asynchronous
            As in Dask's cluster classes.

        Raises
        ------
        ClusterError
            When no cluster or several clusters match, or the cluster does not answer.
        """
        return cls(find_access(name), asynchronous=asynchronous, loop=loop)

    async def _request(self, handler: Handler, **arguments: Any) -> Any:
        return await request(self.scheduler_comm, handler, **arguments)

    async def _start(self) -> None:
        # Cluster._start is not called: it subscribes under a name that all connections would share.
        arguments = self.security.get_connection_args("client")
        self.scheduler_comm = rpc(self._address, connection_args=arguments)
        weakref.finalize(self, _hang_up, self.loop, self.scheduler_comm)
        try:
            identity = await asyncio.wait_for(
                self.scheduler_comm.identity(n_workers=-1), CONNECT_TIMEOUT_S
            )
        except (OSError, TimeoutError) as error:
            await self.scheduler_comm.close_rpc()
            self.status = Status.failed
            raise ClusterError(
                f"the scheduler of cluster {self.name!r} does not answer at {self._address}: "
                f"{error or 'no answer in time'}",
                hint=f"`scalable status {self.name}` shows the state of the cluster",
            ) from error
        if "dashboard" in identity.get("services", ()):
            self._live_page = await self._request(Handler.LIVE_PAGE)
        self.scheduler_info = identity
        self._looked_at = time.monotonic()
        self.status = Status.running

    @property
    def scheduler_info(self) -> Any:
        """Recent description of the scheduler and its workers.

        An asynchronous object returns its last answer while it fetches a new one.
        """
        old = time.monotonic() - self._looked_at > LOOK_AGAIN_S
        # Dask formats the object when it is dropped, even at the interpreter's exit.
        if old and self.status == Status.running and loop_runs(self):
            self._looked_at = time.monotonic()
            if self.asynchronous:
                task = asyncio.ensure_future(self._look())
                self._looking.add(task)
                task.add_done_callback(self._looking.discard)
            else:
                self.sync(self._look)
        return self._scheduler_info

    @scheduler_info.setter
    def scheduler_info(self, info: Any) -> None:
        self._scheduler_info = info

    async def _look(self) -> None:
        with suppress(OSError, TimeoutError):  # the last answer stays valid
            self._scheduler_info = await asyncio.wait_for(
                self.scheduler_comm.identity(n_workers=-1), CONNECT_TIMEOUT_S
            )

    @property
    def workers(self) -> dict[str, Any]:
        """Description of each connected worker, by name."""
        return {str(each["name"]): each for each in self.scheduler_info["workers"].values()}

    @property
    def worker_spec(self) -> dict[str, dict[str, Any]]:
        """Pool of each desired worker, by name. Unconnected workers have placeholder names."""
        spec: dict[str, dict[str, Any]] = {}
        connected = self.workers
        for tag, pool in self.pools.items():
            names = [name for name, each in connected.items() if tag in each["resources"]]
            missing = [f"{tag}-wanted-{number}" for number in range(pool.wanted - len(names))]
            spec |= {name: {"pool": tag} for name in [*names, *missing][: pool.wanted]}
        return spec

    def __await__(self) -> Generator[Any, Any, Self]:
        async def started() -> Self:
            if self.status == Status.created:
                await self._start()
            return self

        return started().__await__()

    @property
    def scheduler_address(self) -> str:
        """Address of the scheduler."""
        return self._address

    @property
    def dashboard_link(self) -> str:
        """URL of the cluster's dashboard with its access token, or ``""`` without a dashboard."""
        return self._live_page

    @property
    def pools(self) -> dict[str, PoolStatus]:
        """Worker counts by tag. An asynchronous object returns those of the last refresh."""
        if not self.asynchronous:
            self.sync(self.refresh)
        return dict(self._pools)

    async def refresh(self) -> dict[str, PoolStatus]:
        """Fetch the counts of the pools from the scheduler, and return them."""
        pools = pools_from_dict(await self._request(Handler.POOLS))
        self._pools = {tag: pool for tag, pool in pools.items() if tag}
        return self._pools

    def scale(self, n: int | str | Mapping[str, int] = 0, count: int | None = None) -> Any:
        """Set the desired number of workers, as :meth:`PoolCluster.scale` does."""
        ordered = self.order(wanted_counts(n, count, lambda: only_tag(self.tags)))
        return ordered if self.asynchronous else None

    scale_up = scale

    def scale_down(self, workers: Iterable[str]) -> Any:
        """Reduce the desired count by one for each name. The cluster chooses which workers stop."""
        return self.sync(self._scale_down, list(workers))

    async def _scale_down(self, names: list[str]) -> None:
        await self._look()
        gone = Counter(
            next(iter(each["resources"]), "")
            for each in self._scheduler_info["workers"].values()
            if str(each["name"]) in names
        )
        pools = await self.refresh()
        counts = {t: max(0, pools[t].wanted - n) for t, n in gone.items() if t in pools}
        if counts:
            await self._request(Handler.SCALE, counts=counts)

    def get_client(self) -> Any:
        """Return the current client if it belongs to this object, or a new `ScalableClient`."""
        return client_of(self)

    def order(
        self, counts: Mapping[str, int], *, source: str = "manual", reason: str = "scale"
    ) -> Any:
        """Set the desired number of workers, and return the counts before and after the change.

        Parameters
        ----------
        counts
            Absolute count by tag.
        source, reason
            Origin (``plan``, ``manual`` or ``decision``) and reason of the change, for the record.
        """
        wanted = {"counts": dict(counts), "source": source, "reason": reason}
        return self.sync(self._request, Handler.SCALE, **wanted)

    def apply(self, decision: ScaleDecision) -> Any:
        """Apply the decision of a scaler, as :meth:`PoolCluster.apply` does.

        Returns
        -------
        dict
            ``before`` and ``after``: counts by tag.
        """
        return self.sync(
            self._request,
            Handler.APPLY,
            add=dict(decision.workers_to_add),
            remove=dict(decision.workers_to_remove),
            active=dict(decision.active_workers),
            reason=decision.reasoning,
        )

    def adapt(  # type: ignore[override]
        self,
        tag: str | None = None,
        minimum: int = 0,
        maximum: float | None = None,
        *,
        enabled: bool = True,
        **options: Any,
    ) -> Any:
        """Adapt a pool's number of workers to its load, as :meth:`PoolCluster.adapt` does.

        The scheduler continues to adapt the pool after this connection is closed.

        Parameters
        ----------
        tag, minimum, maximum, enabled
            As in :meth:`PoolCluster.adapt`.
        **options
            ``interval``, ``wait_count`` and ``target_duration``.

        Raises
        ------
        ClusterError
            When there is no such pool, the bounds are not a range, or an option refers to objects
            of this process, which cannot be sent to the scheduler.
        """
        for name in options.keys() - ADAPT_OPTIONS:
            raise ClusterError(
                f"adapt({name}=...) cannot be sent to cluster {self.name!r}, which runs in other "
                "processes",
                hint=f"give minimum=, maximum=, or one of {', '.join(sorted(ADAPT_OPTIONS))}",
            )
        if tag is None:
            tag = only_tag(self.tags, "adapt(tag, minimum, maximum)")
        most = None if maximum == math.inf else maximum
        bounds = {"tag": tag, "minimum": minimum, "maximum": most}
        return self.sync(self._request, Handler.ADAPT, **bounds, enabled=enabled, **options)

    def status_now(self) -> dict[str, Any]:
        """Fetch the state of the cluster, its pools, managers and costs from the scheduler."""
        answer: dict[str, Any] = self.sync(self._request, Handler.STATUS)
        return answer

    async def _present(self) -> Overview | None:
        """Fetch the current overview from the scheduler (see :meth:`overview`)."""
        answer = await asyncio.wait_for(self._request(Handler.OVERVIEW, fresh_s=NOW_S), ANSWER_S)
        return Overview.from_dict(answer["overview"])

    def set_budget(self, amount: float) -> Any:
        """Set the cluster's budget; see :meth:`scalable.ScalableSession.set_budget`."""
        return self.sync(self._request, Handler.SET_BUDGET, amount=amount)

    async def run_files(self, known: Mapping[str, int], *, costs: bool = False) -> dict[str, Any]:
        """Return the run's name, and the content of its files beyond the sizes in ``known``.

        With ``costs``, the scheduler first writes the costs so far.

        Raises
        ------
        ClusterError
            When the scheduler does not answer, or does not record a run.
        """
        try:
            asked = {"known": dict(known), "costs": costs}
            answer: dict[str, Any] = await self._request(Handler.RUN_FILES, **asked)
        except (OSError, TimeoutError, ValueError) as error:
            raise ClusterError(
                f"could not fetch the record of cluster {self.name!r}: {error}"
            ) from error
        return answer

    def delete(self) -> Any:
        """Delete the cluster with its workers, managers, scheduler and record."""
        return self.sync(self._delete)

    async def _delete(self) -> None:
        logger.debug("requesting cluster %s to stop", self.name)
        await self._request(Handler.END, reason="it was stopped on request")
        deadline = time.monotonic() + DELETE_TIMEOUT_S
        while await self._answers():
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"cluster {self.name!r} has not stopped within {DELETE_TIMEOUT_S:g} s"
                )
            await asyncio.sleep(POLL_S)
        await self._close()

    async def _answers(self) -> bool:
        asked = asyncio.ensure_future(self.scheduler_comm.identity(n_workers=0))
        deadline = time.monotonic() + CONNECT_TIMEOUT_S
        try:
            while not (await asyncio.wait([asked], timeout=SILENT_S))[0]:
                gone = not await listens(self._address, SILENT_S)
                if gone or time.monotonic() > deadline:
                    return False
            asked.result()
        except OSError:
            return False
        finally:
            asked.cancel()
        return True

    async def _close(self) -> None:
        if self.status in (Status.closing, Status.closed):
            return
        if self._owner and self.status == Status.running:
            self._owner = False
            await self._delete()
            return
        self.status = Status.closing
        if self.scheduler_comm is not None:
            await self.scheduler_comm.close_rpc()
        self.status = Status.closed
        self._end_updates()

    def close(self, timeout: float | None = None) -> Any:
        """Disconnect from the cluster. It keeps running unless this object is its owner."""
        if self.status == Status.closed:
            return NoOpAwaitable() if self.asynchronous else None
        return super().close(timeout)


class DiscoveredCluster(AttachedCluster):
    """Connection for tools such as dask-ctl: ``close()`` deletes the cluster for all clients."""

    @classmethod
    def from_name(cls, name: str, loop: Any = None, asynchronous: bool = False) -> Self:
        return cls(find_access(name), asynchronous=asynchronous, loop=loop, owner=True)

    def adapt(  # type: ignore[override]
        self, tag: str | None = None, minimum: int = 0, maximum: float | None = None, **more: Any
    ) -> Any:
        """Adapt a pool. An asynchronous object returns awaitable bounds for tools like dask-ctl."""
        order = super().adapt(tag, minimum, maximum, **more)
        return SentBounds(order, minimum, maximum) if self.asynchronous else order

    def get_snippet(self) -> str:
        return f"import scalable\n\nclient = scalable.connect({self.name!r})\n"


def _hang_up(loop: Any, comm: Any) -> None:
    """Close the connection of an object that was dropped without ``close()``."""
    with suppress(RuntimeError):  # the event loop is closed
        loop.add_callback(comm.close_rpc)


# Bounds -------------------------------------------------------------------------------------------


class SentBounds:
    """Bounds of an adaptive pool. Awaiting them waits until the scheduler has received them."""

    def __init__(
        self, order: Coroutine[Any, Any, Any], minimum: int, maximum: float | None
    ) -> None:
        self.minimum, self.maximum = minimum, maximum
        self._sent: asyncio.Task[Any] = asyncio.ensure_future(order)

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._sent.__await__()
