"""A cluster in Kubernetes that ends with the session of its creator."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import secrets
from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress
from typing import Any

from distributed.core import Status

from scalable.client.attached import AttachedCluster
from scalable.client.tunnel import BackgroundTunnel
from scalable.errors import ScalableError
from scalable.liveness import identify_process
from scalable.manager.launcher import UnitState
from scalable.protocol.addresses import LOOPBACK
from scalable.protocol.credentials import new_credentials
from scalable.protocol.handlers import Attachment
from scalable.protocol.streams import RELAY_PORT
from scalable.providers.kubernetes import render
from scalable.providers.kubernetes.api import Api
from scalable.providers.kubernetes.forms import form_of
from scalable.providers.kubernetes.launcher import PodLauncher
from scalable.providers.kubernetes.manager import Manager
from scalable.providers.kubernetes.names import ROLE, SCHEDULER
from scalable.providers.kubernetes.place import Place, watch_of
from scalable.providers.kubernetes.pools import pool_of, shape_of, worker_config
from scalable.providers.kubernetes.reasons import observation
from scalable.providers.kubernetes.session_files import session_files
from scalable.providers.kubernetes.traits import TRAITS
from scalable.providers.kubernetes.tunnel import tunnel_to
from scalable.records import AccessFile
from scalable.records.directory import pem_fields
from scalable.spec import DeploymentSpec
from scalable.units import parse_duration

logger = logging.getLogger("scalable.providers.kubernetes")


class KubernetesCluster(AttachedCluster):
    """A scheduler in a pod, pools of workers in pods, and their manager in this process.

    Everything in Kubernetes belongs to one root object. :meth:`close` deletes it. If this process
    dies, the scheduler ends itself after ``abandoned_after``, and Kubernetes removes the rest.

    Parameters
    ----------
    spec
        The request.
    template
        The user's pod template; empty without one.
    asynchronous
        Whether it is used with ``await`` inside a running event loop.

    Attributes
    ----------
    follows_load
        Whether the scheduler scales adaptive pools by itself.
    tunnel
        The tunnel to the scheduler; None before the start.
    """

    follows_load = True

    def __init__(
        self, spec: DeploymentSpec, template: Mapping[str, Any], *, asynchronous: bool = False
    ) -> None:
        self.tunnel: BackgroundTunnel | None = None
        cluster_id = secrets.token_hex(5)
        self._frame = render.Frame(cluster_id, spec.target_name, spec.options, template)
        for component in (None, *spec.components.values()):
            render.image_of(self._frame, component)
        self._spec = spec
        self._form = form_of(spec.options)
        self._api = Api(spec.options["context"], rules=self._form.rules)
        self._launcher = PodLauncher(
            self._api,
            self._frame.namespace,
            render.worker_selector(self._frame),
            lambda tag, unit: self._form.unit(self._frame, spec.components[tag], unit),
            self._form,
        )
        self._watch = watch_of(self._api, self._frame, self._changed)
        self._launcher.follow(self._watch)
        self._place = Place(self._api, self._frame, self._watch, self._form)
        self._manager = Manager(self._attachment(), cluster_id)
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
            name=self._frame.name,
            address="",
            pem=pem_fields(*self._credentials),
            tags=spec.tags,
            tasks={task.name: task.component for task in spec.tasks.values()},
            labels=labels,
        )
        try:
            super().__init__(access, asynchronous=asynchronous)
        except KeyboardInterrupt:
            # It interrupts the wait of this thread alone: the start goes on in the event loop.
            self.sync(self._abort)  # type: ignore[no-untyped-call]
            raise

    def _attachment(self) -> Attachment:
        spec = self._spec
        return Attachment(
            manager=self._frame.manager,
            nonce=secrets.token_hex(3),
            identity=identify_process(),
            target=spec.target_name,
            provider=spec.provider_name,
            starting=dataclasses.asdict(TRAITS.starting),
            shares_files=TRAITS.shares_files,
            pools={
                tag: {"slots": part.slots, **shape_of(part)}
                for tag, part in spec.components.items()
            },
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
        """Cancel a start, and return when everything that it made is gone."""
        starting = self._starting
        if starting is not None:
            if not starting.cancelling():  # a second time would interrupt the removal
                starting.cancel()
            await asyncio.wait([starting])
        if self.status is Status.running:  # the start was over when the interrupt came
            await self._close()

    async def _start_all(self) -> None:
        options = self._spec.options
        start_s = parse_duration(options["start_timeout"])
        await self._watch.start()
        self._made = True
        files = session_files(self._spec, self.id, self._credentials)
        await self._place.create(self._framed, files, start_s)
        pod = await self._place.scheduler_pod(start_s)
        scheduler = f"tls://{pod['status']['podIP']}:{render.PORT}"
        logger.debug("cluster %s: scheduler at %s", self.name, scheduler)
        self.tunnel = tunnel_to(
            options["context"],
            self._frame.namespace,
            pod["metadata"]["name"],
            RELAY_PORT,
            kept_s=parse_duration(options["reconnect_within"]),
        )
        self._address = f"tls://{LOOPBACK}:{self.tunnel.open()}"
        components = self._spec.components.values()
        configs = {
            c.name: worker_config(
                c, scheduler, self.security, self._frame.manager, once=self._form.starts_again
            )
            for c in components
        }
        await asyncio.gather(
            *(self._place.add_workers(tag, config) for tag, config in configs.items())
        )
        pools = [pool_of(component, self._launcher, self._spec) for component in components]
        await self._manager.start(
            self._address, self.security, pools, lambda: self._place.scheduler_pod(start_s)
        )
        await super()._start()
        await self._place.limit_life(self._spec.time_to_live_s)

    def _framed(self, uid: str) -> render.Frame:
        self._frame = dataclasses.replace(self._frame, root_uid=uid)
        return self._frame

    # Changes --------------------------------------------------------------------------------------

    def scale_to_plan(self, counts: Mapping[str, int]) -> None:
        """Set the wanted numbers of workers; the first time, adaptive pools go on adapting.

        Parameters
        ----------
        counts
            Tag -> number of workers.
        """
        source, self._source = self._source, "manual"
        self.order(counts, source=source)

    def _changed(self, pod: Mapping[str, Any], gone: bool) -> None:
        """Take a change of a pod from the watch."""
        if pod["metadata"].get("labels", {}).get(ROLE) != SCHEDULER:
            self._launcher.noted(pod, gone)
            return
        seen = observation(self._form.first_life(None, pod), gone=gone)
        if self.status is Status.running and seen.state is UnitState.ENDED:
            logger.error("cluster %s has ended: its scheduler's pod: %s", self.name, seen.reason)
            self.status = Status.failed
            if self.tunnel is not None:
                self.tunnel.abandon(f"the scheduler's pod has ended: {seen.reason}")

    # End ------------------------------------------------------------------------------------------

    async def _close(self) -> None:
        if self.status in (Status.closing, Status.closed):
            return
        self.status = Status.closing
        try:
            await self._end_all()
        finally:
            self.status = Status.closed

    async def _end_all(self) -> None:
        """End all parts, each even if another fails."""
        self._launcher.all_ends()
        async with AsyncExitStack() as ending:
            ending.push_async_callback(self._api.close)
            ending.push_async_callback(self._watch.close)
            if self._made:
                ending.push_async_callback(self._place.remove)
            if self.tunnel is not None:
                ending.push_async_callback(asyncio.to_thread, self.tunnel.close)
            if self.scheduler_comm is not None:
                ending.push_async_callback(self.scheduler_comm.close_rpc)
            ending.push_async_callback(self._manager.close)
