"""Cluster in a remote backend that stops with its creator's session."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import Any, Protocol

from distributed.core import Status, rpc

from scalable.client.attached import AttachedCluster
from scalable.client.tunnel import BackgroundTunnel
from scalable.errors import ClusterError, ProviderError, ScalableError
from scalable.liveness import identify_process
from scalable.manager.launcher import Launcher
from scalable.manager.pools import Pool
from scalable.manager.reconciler import Reconciler
from scalable.model import DeploymentSpec, ProgramState, Traits
from scalable.planning.unit_prices import unit_prices
from scalable.protocol.addresses import LOOPBACK
from scalable.protocol.credentials import new_credentials
from scalable.protocol.handlers import Handler, request
from scalable.protocol.pools import Attachment
from scalable.providers.remote.session_files import session_files
from scalable.providers.remote.workers import pool_of, shape_of, worker_config
from scalable.records import AccessFile
from scalable.records.directory import pem_fields
from scalable.units import parse_duration
from scalable.worker.config import WorkerConfig

logger = logging.getLogger("scalable.providers.remote")


class SessionSite(Protocol):
    """Resources of one cluster in a remote backend, managed by its creator's process."""

    @property
    def name(self) -> str:
        """Name of the cluster in the backend."""

    @property
    def manager(self) -> str:
        """Id of the manager in the creator's process."""

    @property
    def starts_again(self) -> bool:
        """True if the backend may restart a worker's program."""

    @property
    def launcher(self) -> Launcher:
        """Launcher of the workers."""

    async def begin(self, on_end: Callable[[str], object]) -> None:
        """Watch the backend, and call ``on_end`` with the reason when the scheduler has stopped.

        The function is called in this event loop, and only after :meth:`scheduler` has returned.
        """

    async def make(self, files: Mapping[str, str], start_s: float) -> None:
        """Create the scheduler and the resources that it needs.

        Parameters
        ----------
        files
            Files of the scheduler's program: contents by relative path.
        start_s
            Seconds within which the scheduler has to run. Until :meth:`limit_life` is called, the
            backend deletes everything after this time, as far as it can.
        """

    async def scheduler(self, start_s: float) -> str:
        """Wait until the scheduler's program runs, and return its address within the backend.

        Raises
        ------
        ProviderError
            If it has stopped, or does not run within ``start_s`` seconds. The message has the
            reason.
        """

    def tunnel(self) -> BackgroundTunnel:
        """Return a tunnel to the relay, which forwards connections to the scheduler."""

    async def add_workers(self, configs: Mapping[str, WorkerConfig]) -> None:
        """Store the workers' configurations by tag, before the first worker starts."""

    async def start_manager(self) -> None:
        """Start the program of a manager in the backend, after :meth:`add_workers`.

        Raises
        ------
        ProviderError
            If the backend refuses it.
        """

    async def manager_state(self) -> ProgramState:
        """Return the state of the manager's program."""

    async def limit_life(self, seconds: float | None) -> None:
        """Set the seconds after which the backend deletes everything, as far as it can.

        None means never.
        """

    def all_ends(self) -> None:
        """Announce that :meth:`remove` follows, so that no worker must be stopped by itself."""

    async def remove(self) -> None:
        """Delete all resources of the cluster, and return when they are gone."""

    async def close(self) -> None:
        """Stop watching, and close all connections."""


#: Errors of a request to a scheduler that is gone. Tornado raises ValueError for a connection that
#: closes before its TLS handshake.
UNREACHABLE = (OSError, TimeoutError, ValueError)


class SessionCluster(AttachedCluster):
    """A scheduler and pools of workers in a remote backend.

    The pools' manager runs in this process, or with ``manager: there`` next to the scheduler.
    :meth:`close` deletes everything. If this process dies, the scheduler stops itself after
    ``abandoned_after``, and its manager and workers stop with it.

    Parameters
    ----------
    spec
        The request.
    make_site
        Function: ``make_site(cluster_id)`` returns the cluster's site, without a request.
    traits
        Traits of the provider.
    asynchronous
        True if it is used with ``await`` inside a running event loop.

    Attributes
    ----------
    follows_load
        True if the scheduler itself scales adaptive pools.
    site
        Resources of the cluster in the backend.
    tunnel
        Tunnel to the scheduler. None before the start.
    before_end
        Function called when the workers have stopped, while the scheduler still answers.
    """

    follows_load = True
    before_end: Callable[[], Awaitable[None]] | None = None

    def __init__(
        self,
        spec: DeploymentSpec,
        make_site: Callable[[str], SessionSite],
        traits: Traits,
        *,
        asynchronous: bool = False,
    ) -> None:
        self.tunnel: BackgroundTunnel | None = None
        cluster_id = secrets.token_hex(5)
        self.site = make_site(cluster_id)
        self._spec = spec
        self._manager: SessionManager | PlacedManager = (
            PlacedManager(
                self.site,
                self.site.manager,
                parse_duration(spec.options["start_timeout"]),
                parse_duration(spec.options["abandoned_after"]),
            )
            if spec.options.get("manager") == "there"
            else SessionManager(self._attachment(traits), cluster_id, self._pools_here)
        )
        self._made = False
        self._starting: asyncio.Task[Any] | None = None
        self._source = "plan"
        labels: dict[str, list[str]] = {}
        for tag, component in spec.components.items():
            for label in component.tags:
                labels.setdefault(label, []).append(tag)
        self._credentials = new_credentials()
        access = AccessFile(
            id=cluster_id,
            name=self.site.name,
            address="",
            pem=pem_fields(*self._credentials),
            tags=spec.tags,
            tasks={task.name: task.component for task in spec.tasks.values()},
            labels=labels,
        )
        try:
            super().__init__(access, asynchronous=asynchronous)
        except KeyboardInterrupt:
            # It interrupts only the wait of this thread: the start continues in the event loop.
            self.sync(self._abort)
            raise

    def _pools_here(self) -> list[Pool]:
        launcher, spec = self.site.launcher, self._spec
        return [pool_of(component, launcher, spec) for component in spec.components.values()]

    def _attachment(self, traits: Traits) -> Attachment:
        spec = self._spec
        return Attachment(
            manager=self.site.manager,
            nonce=secrets.token_hex(3),
            identity=identify_process(),
            target=spec.target_name,
            provider=spec.provider_name,
            starting=dataclasses.asdict(traits.starting),
            shares_files=traits.shares_files,
            pools={
                tag: {"slots": part.slots, **shape_of(part)}
                for tag, part in spec.components.items()
            },
            prices=unit_prices(spec, traits.starting),
        )

    # Start ----------------------------------------------------------------------------------------

    async def _start(self) -> None:
        self._starting = asyncio.current_task()
        try:
            await self._start_all()
        except BaseException:
            self.status = Status.closing
            with suppress(ScalableError, OSError):
                await self._end_all()
            self.status = Status.closed
            raise
        finally:
            self._starting = None

    async def _abort(self) -> None:
        """Cancel a start, and return when everything that it created is gone."""
        starting = self._starting
        if starting is not None:
            if not starting.cancelling():  # a second time would interrupt the removal
                starting.cancel()
            await asyncio.wait([starting])
        if self.status is Status.running:  # the start was over when the interrupt came
            await self._close()

    async def _start_all(self) -> None:
        start_s = parse_duration(self._spec.options["start_timeout"])
        await self.site.begin(self._scheduler_ended)
        self._made = True
        await self.site.make(session_files(self._spec, self.id, self._credentials), start_s)
        scheduler = await self.site.scheduler(start_s)
        logger.debug("cluster %s: scheduler at %s", self.name, scheduler)
        self.tunnel = self.site.tunnel()
        self._address = f"tls://{LOOPBACK}:{self.tunnel.open()}"
        components = self._spec.components.values()
        once = self.site.starts_again
        await self.site.add_workers(
            {
                c.name: worker_config(c, scheduler, self.security, self.site.manager, once=once)
                for c in components
            }
        )
        check: Callable[[], Awaitable[object]] = lambda: self.site.scheduler(start_s)  # noqa: E731
        await self._manager.start(self._address, self.security, check)
        await super()._start()
        await self.site.limit_life(self._spec.time_to_live_s)

    # Changes --------------------------------------------------------------------------------------

    def scale_to_plan(self, counts: Mapping[str, int]) -> None:
        """Set the desired numbers of workers, by tag.

        The first call sets the planned numbers: adaptive pools continue to adapt.

        Parameters
        ----------
        counts
            Numbers of workers by tag.
        """
        source, self._source = self._source, "manual"
        self.order(counts, source=source)

    def _scheduler_ended(self, reason: str) -> None:
        if self.status is Status.running:
            logger.error("cluster %s has stopped: %s", self.name, reason)
            self.status = Status.failed
            if self.tunnel is not None:
                self.tunnel.abandon(reason)

    # Stop -----------------------------------------------------------------------------------------

    async def _close(self) -> None:
        if self.status in (Status.closing, Status.closed):
            return
        self.status = Status.closing
        try:
            await self._end_all()
        finally:
            self.status = Status.closed

    async def _end_all(self) -> None:
        """Close all parts, even if some of them fail."""
        self.site.all_ends()
        async with AsyncExitStack() as ending:
            ending.push_async_callback(self.site.close)
            if self._made:
                ending.push_async_callback(self.site.remove)
            if self.tunnel is not None:
                ending.push_async_callback(asyncio.to_thread, self.tunnel.close)
            if self.scheduler_comm is not None:
                ending.push_async_callback(self.scheduler_comm.close_rpc)
            ending.push_async_callback(self._manager.close, self.before_end)


# Placed manager -----------------------------------------------------------------------------------

#: Number of reports that the creator sends within ``abandoned_after``.
REPORTS = 5
#: Longest pause in seconds between two reports.
LONGEST_PERIOD_S = 10.0
#: Seconds between two checks of a manager's program before the manager attaches.
STATE_POLL_S = 2.0


class ManagerProgram(Protocol):
    """Program of a manager in a remote backend."""

    async def start_manager(self) -> None:
        """Start the program, and raise ProviderError if the backend refuses."""

    async def manager_state(self) -> ProgramState:
        """Return the state of the program, with the reason."""


class PlacedManager:
    """Starts a manager in the backend, and reports to the scheduler that the creator is alive.

    The manager must attach within ``start_s`` seconds. The cluster stops itself after
    ``abandoned_after_s`` seconds without a report.
    """

    def __init__(
        self, program: ManagerProgram, manager: str, start_s: float, abandoned_after_s: float
    ) -> None:
        self._program, self._manager, self._start_s = program, manager, start_s
        self._period_s = min(LONGEST_PERIOD_S, abandoned_after_s / REPORTS)
        self._comm: Any = None
        self._reporting: asyncio.Task[None] | None = None

    async def start(
        self, address: str, security: Any, check: Callable[[], Awaitable[object]]
    ) -> None:
        """Start the manager, and return when it is attached to the scheduler at ``address``.

        ``check`` raises an error if the scheduler has stopped. Raises ClusterError if the scheduler
        does not answer in time, and ProviderError if the manager does not start or attach.
        """
        self._comm = scheduler_comm(address, security)
        # The first report precedes the manager: from now on the manager's reports do not count.
        await answer_of(partial(request, self._comm, Handler.CREATOR_LIVES), check)
        self._reporting = asyncio.create_task(self._report())
        await self._program.start_manager()
        await self._attached(check)

    async def _attached(self, check: Callable[[], Awaitable[object]]) -> None:
        deadline = time.monotonic() + self._start_s
        looked_at, told = time.monotonic(), ""
        while True:
            status = await answer_of(partial(request, self._comm, Handler.STATUS), check)
            if any(row["id"] == self._manager for row in status["managers"]):
                return
            if time.monotonic() - looked_at > STATE_POLL_S:
                looked_at = time.monotonic()
                seen = await self._program.manager_state()
                if seen.state in ("failed", "completed"):
                    raise ProviderError(f"the manager is not running: {seen.reason or seen.state}")
                if seen.reason and seen.reason != told:
                    told = seen.reason
                    logger.debug("the manager waits: %s", told)
            if time.monotonic() > deadline:
                raise ProviderError(
                    f"the manager has not attached to the scheduler within {self._start_s:g} s"
                    f"{told and f': {told}'}",
                    hint="raise start_timeout in the target if it only needs more time, or leave "
                    "out manager: there",
                )
            await asyncio.sleep(POLL_S)

    async def _report(self) -> None:
        while True:
            try:
                report = request(self._comm, Handler.CREATOR_LIVES)
                await asyncio.wait_for(report, CONNECT_TIMEOUT_S)
            except UNREACHABLE as error:
                logger.debug("could not report to the scheduler that its creator runs: %s", error)
            await asyncio.sleep(self._period_s)

    async def close(self, before_end: Callable[[], Awaitable[None]] | None) -> None:
        """Report the end of the cluster to the scheduler. Its manager stops the workers."""
        if self._reporting is not None:
            self._reporting.cancel()
            await asyncio.gather(self._reporting, return_exceptions=True)
        if self._comm is None:
            return
        if before_end is not None:
            await before_end()
        try:
            end = request(self._comm, Handler.END, reason="its creator has closed it")
            await asyncio.wait_for(end, LEAVE_TIMEOUT_S)
        except UNREACHABLE as error:
            logger.debug("could not notify the scheduler that the session closes: %s", error)
        await self._comm.close_rpc()


# Session manager ----------------------------------------------------------------------------------

CONNECT_TIMEOUT_S = 10.0
ATTACH_TIMEOUT_S = 60.0
LEAVE_TIMEOUT_S = 10.0
POLL_S = 0.2


def scheduler_comm(address: str, security: Any) -> Any:
    """Return Dask's ``rpc`` object for a scheduler with these credentials."""
    arguments = security.get_connection_args("client")
    return rpc(address, timeout=CONNECT_TIMEOUT_S, connection_args=arguments)  # type: ignore[no-untyped-call]


async def answer_of(
    ask: Callable[[], Awaitable[Any]], check: Callable[[], Awaitable[object]]
) -> Any:
    """Return the result of ``ask``, which is repeated while the scheduler's program starts.

    ``check`` raises an error if the scheduler has stopped. Raises ClusterError if the scheduler
    does not answer within 60 s.
    """
    deadline = time.monotonic() + ATTACH_TIMEOUT_S
    while True:
        try:
            return await asyncio.wait_for(ask(), CONNECT_TIMEOUT_S)
        except UNREACHABLE as error:
            await check()
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"the scheduler does not answer through the tunnel: {str(error) or 'no answer'}"
                ) from error
        await asyncio.sleep(POLL_S)


class SessionManager:
    """Starts and stops units for a scheduler behind a tunnel."""

    def __init__(
        self, attachment: Attachment, incarnation: str, pools: Callable[[], Iterable[Pool]]
    ) -> None:
        # The incarnation makes the names of units unique.
        self.reconciler = Reconciler(incarnation)
        self._pools = pools
        self._attachment = attachment
        self._comm: Any = None

    async def start(
        self,
        address: str,
        security: Any,
        check: Callable[[], Awaitable[object]],
    ) -> None:
        """Attach to the scheduler at ``address``, and start reconciling the pools.

        ``check`` raises an error if the scheduler has stopped. Raises ClusterError if the scheduler
        does not answer in time or refuses the manager.
        """
        own = self._attachment
        self._comm = scheduler_comm(address, security)
        attach = partial(request, self._comm, Handler.ATTACH, **own.to_message())
        answer = await answer_of(attach, check)
        if not answer["accepted"]:
            raise ClusterError(f"the scheduler rejects its manager: {answer['reason']}")
        for pool in self._pools():
            self.reconciler.inventory.add_pool(pool)
        self.reconciler.start(self._comm, own.manager, own.nonce)
        self.reconciler.wake()

    async def close(self, before_end: Callable[[], Awaitable[None]] | None) -> None:
        """Stop all units, and report the end of the cluster to the scheduler."""
        await self.reconciler.close()
        if self._comm is None:
            return
        own = {"manager": self._attachment.manager, "nonce": self._attachment.nonce}
        try:
            leave = request(self._comm, Handler.LEAVE, **own, gone=True)
            await asyncio.wait_for(leave, LEAVE_TIMEOUT_S)
            if before_end is not None:
                await before_end()
            end = request(self._comm, Handler.END, reason="its creator has closed it")
            await asyncio.wait_for(end, LEAVE_TIMEOUT_S)
        except UNREACHABLE as error:
            logger.debug("could not notify the scheduler that the session closes: %s", error)
        await self._comm.close_rpc()
