"""Cluster in a remote backend that stops with its creator's session."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, suppress
from typing import Any, Protocol

from distributed.core import Status

from scalable.client.attached import AttachedCluster
from scalable.client.tunnel import BackgroundTunnel
from scalable.errors import ScalableError
from scalable.liveness import identify_process
from scalable.manager.launcher import Launcher
from scalable.manager.pools import Pool
from scalable.planning.unit_prices import unit_prices
from scalable.protocol.addresses import LOOPBACK
from scalable.protocol.attachments import Attachment
from scalable.protocol.credentials import new_credentials
from scalable.records import AccessFile
from scalable.records.directory import pem_fields
from scalable.remote.placed_manager import PlacedManager
from scalable.remote.session_files import session_files
from scalable.remote.session_manager import SessionManager
from scalable.remote.workers import pool_of, shape_of, worker_config
from scalable.spec import DeploymentSpec, ProgramState, Traits
from scalable.units import parse_duration
from scalable.worker.config import WorkerConfig

logger = logging.getLogger("scalable.remote")


class SessionSite(Protocol):
    """The resources of one cluster in a remote backend, managed by its creator's process."""

    @property
    def name(self) -> str:
        """Name of the cluster in the backend."""

    @property
    def manager(self) -> str:
        """Id of the manager in the creator's process."""

    @property
    def starts_again(self) -> bool:
        """True if the backend may restart the program of a worker."""

    @property
    def launcher(self) -> Launcher:
        """Launcher of the workers."""

    async def begin(self, on_end: Callable[[str], object]) -> None:
        """Watch the backend, and call ``on_end`` with the reason when the scheduler has ended.

        The function is called in this event loop, and only after :meth:`scheduler` has returned.
        """

    async def make(self, files: Mapping[str, str], start_s: float) -> None:
        """Create the scheduler and all that it needs.

        Parameters
        ----------
        files
            Contents of the files of the scheduler's program, by relative path.
        start_s
            Seconds within which the scheduler has to run. Until :meth:`limit_life` is called, the
            backend deletes everything after this time, as far as it can.
        """

    async def scheduler(self, start_s: float) -> str:
        """Wait until the scheduler's program runs, and return its address within the backend.

        Raises
        ------
        ProviderError
            When it has ended, or does not run within ``start_s`` seconds; with the reason.
        """

    def tunnel(self) -> BackgroundTunnel:
        """Return a tunnel to the relay next to the scheduler."""

    async def add_workers(self, configs: Mapping[str, WorkerConfig]) -> None:
        """Store the workers' configurations by tag, before the first worker starts."""

    async def start_manager(self) -> None:
        """Start the program of a manager in the backend, after :meth:`add_workers`.

        Raises
        ------
        ProviderError
            When the backend refuses it.
        """

    async def manager_state(self) -> ProgramState:
        """Return the state of the manager's program."""

    async def limit_life(self, seconds: float | None) -> None:
        """Set the seconds after which the backend deletes everything, as far as it can.

        None means never.
        """

    def all_ends(self) -> None:
        """Announce that :meth:`remove` follows, so that workers need not be stopped singly."""

    async def remove(self) -> None:
        """Delete all resources of the cluster, and return when they are gone."""

    async def close(self) -> None:
        """Stop watching, and close all connections."""


class SessionCluster(AttachedCluster):
    """A scheduler and pools of workers in a remote backend.

    The manager of the pools runs in this process, or with ``manager: there`` next to the scheduler.
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
        Whether it is used with ``await`` inside a running event loop.

    Attributes
    ----------
    follows_load
        Whether the scheduler itself scales adaptive pools.
    site
        The resources of the cluster in the backend.
    tunnel
        The tunnel to the scheduler; None before the start.
    """

    follows_load = True

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
            logger.error("cluster %s has ended: %s", self.name, reason)
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
        """Close all parts, each even if another fails."""
        self.site.all_ends()
        async with AsyncExitStack() as ending:
            ending.push_async_callback(self.site.close)
            if self._made:
                ending.push_async_callback(self.site.remove)
            if self.tunnel is not None:
                ending.push_async_callback(asyncio.to_thread, self.tunnel.close)
            if self.scheduler_comm is not None:
                ending.push_async_callback(self.scheduler_comm.close_rpc)
            ending.push_async_callback(self._manager.close)
