"""`AttachedCluster`: the connection to a cluster that runs in processes of its own."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Generator, Mapping
from typing import Any, Self

from distributed.core import Status, rpc
from distributed.deploy.cluster import Cluster
from distributed.utils import NoOpAwaitable

from scalable.errors import ClusterError
from scalable.protocol.credentials import security_of
from scalable.protocol.dask_seams.cluster import check_overrides, start_loop
from scalable.protocol.handlers import SchedulerCalls
from scalable.protocol.pools import only_tag, wanted_counts
from scalable.records import AccessFile, find_access
from scalable.scaling.decisions import ScaleDecision
from scalable.spec.clusters import PoolStatus, pools_from_dict

logger = logging.getLogger("scalable.client")

CONNECT_TIMEOUT_S = 15.0
DELETE_TIMEOUT_S = 60.0
POLL_S = 0.1


class AttachedCluster(Cluster):
    """A connection to a cluster that runs in processes of its own.

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
        Whether ``close()`` ends the cluster too.
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
        check_overrides()
        self.id = access.id
        self.tasks, self.labels, self.tags = access.tasks, access.labels, access.tags
        self._owner = owner
        self._address = access.address
        self._pools: dict[str, PoolStatus] = {}
        self._live_page = ""
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
            Name of the cluster, ``provider/name``, its id or the beginning of its id, or the path
            of an access file.
        loop, asynchronous
            As in Dask's cluster classes.

        Raises
        ------
        ClusterError
            When no cluster or several clusters match, or the cluster does not answer.
        """
        return cls(find_access(name), asynchronous=asynchronous, loop=loop)

    @property
    def _calls(self) -> SchedulerCalls:
        return SchedulerCalls(self.scheduler_comm)

    async def _start(self) -> None:
        # Cluster._start is not called: it subscribes under a name that all connections would share.
        arguments = self.security.get_connection_args("client")
        self.scheduler_comm = rpc(self._address, connection_args=arguments)
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
            self._live_page = await self._calls.live_page()
        self.scheduler_info = identity
        self.status = Status.running

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
        """URL of the cluster's live page with its access token; empty if there is no live page."""
        return self._live_page

    @property
    def pools(self) -> dict[str, PoolStatus]:
        """Tag -> worker counts, asked of the scheduler; if asynchronous, of the last refresh."""
        if not self.asynchronous:
            self.sync(self.refresh)
        return dict(self._pools)

    async def refresh(self) -> dict[str, PoolStatus]:
        """Ask the scheduler for the counts of its pools, and return them."""
        pools = pools_from_dict(await self._calls.pools())
        self._pools = {tag: pool for tag, pool in pools.items() if tag}
        return self._pools

    def scale(self, n: int | str | Mapping[str, int] = 0, count: int | None = None) -> Any:
        """Set the wanted number of workers, as :meth:`PoolCluster.scale` does."""
        ordered = self.order(wanted_counts(n, count, lambda: only_tag(self.tags)))
        return ordered if self.asynchronous else None

    def order(
        self, counts: Mapping[str, int], *, source: str = "manual", reason: str = "scale"
    ) -> Any:
        """Set the wanted number of workers, and return the counts before and after.

        Parameters
        ----------
        counts
            Tag -> absolute count.
        source, reason
            Origin (``plan``, ``manual`` or ``decision``) and reason of the change, for the record.
        """
        return self.sync(self._calls.scale, counts, source=source, reason=reason)

    def apply(self, decision: ScaleDecision) -> Any:
        """Apply the decision of a scaler, as :meth:`PoolCluster.apply` does.

        Returns
        -------
        dict
            ``before`` and ``after``: tag -> count.
        """
        return self.sync(
            self._calls.apply,
            decision.workers_to_add,
            decision.workers_to_remove,
            decision.active_workers,
            decision.reasoning,
        )

    def adapt(  # type: ignore[override]
        self,
        tag: str | None = None,
        minimum: int = 0,
        maximum: int | None = None,
        *,
        enabled: bool = True,
    ) -> Any:
        """Adapt a pool's number of workers to its load, as :meth:`PoolCluster.adapt` does.

        The scheduler goes on adapting the pool after this connection has ended.
        """
        if tag is None:
            tag = only_tag(self.tags, "adapt(tag, minimum, maximum)")
        return self.sync(self._calls.adapt, tag, minimum, maximum, enabled=enabled)

    def delete(self) -> Any:
        """End the cluster with its workers, managers, scheduler and record."""
        return self.sync(self._delete)

    async def _delete(self) -> None:
        logger.debug("cluster %s is told to end", self.name)
        await self._calls.end("its end was requested")
        deadline = time.monotonic() + DELETE_TIMEOUT_S
        while await self._answers():
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"cluster {self.name!r} has not ended within {DELETE_TIMEOUT_S:g} s"
                )
            await asyncio.sleep(POLL_S)
        await self._close()

    async def _answers(self) -> bool:
        try:
            await asyncio.wait_for(self.scheduler_comm.identity(n_workers=0), CONNECT_TIMEOUT_S)
        except (OSError, TimeoutError):
            return False
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

    def close(self, timeout: float | None = None) -> Any:
        """Disconnect from the cluster, which keeps running."""
        if self.status == Status.closed:
            return NoOpAwaitable() if self.asynchronous else None
        return super().close(timeout)
