"""Objects of a session's cluster, and the watch of its pods."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import secrets
from collections.abc import Callable, Mapping
from typing import Any

from scalable.client.tunnel import BackgroundTunnel
from scalable.manager.launcher import UnitState
from scalable.model import DeploymentSpec, ProgramState
from scalable.protocol.streams import RELAY_PORT
from scalable.providers.kubernetes import render
from scalable.providers.kubernetes.api import Api
from scalable.providers.kubernetes.form import form_of
from scalable.providers.kubernetes.launcher import PodLauncher, facts_of
from scalable.providers.kubernetes.manager_objects import manager_parts
from scalable.providers.kubernetes.names import MANAGING, ROLE, SCHEDULER, label
from scalable.providers.kubernetes.permissions import session_rules
from scalable.providers.kubernetes.place import Place, watch_of
from scalable.providers.kubernetes.reasons import observation
from scalable.providers.kubernetes.tunnel import tunnel_to
from scalable.providers.remote.session_files import manager_files
from scalable.records.packing import PLACE
from scalable.units import parse_duration
from scalable.worker.config import WorkerConfig


class KubernetesSite:
    """A session's cluster (a :class:`.SessionSite`), in which one root object owns the rest."""

    def __init__(self, spec: DeploymentSpec, template: Mapping[str, Any], cluster_id: str) -> None:
        self.frame = render.Frame(cluster_id, spec.target_name, spec.options, template)
        for component in (None, *spec.components.values()):
            render.image_of(self.frame, component)
        self._form = form_of(spec.options)
        self._kept_s = parse_duration(spec.options["reconnect_within"])
        self._api = Api(
            spec.options["context"], rules=session_rules(self._form.rules, spec.options)
        )
        self.launcher = PodLauncher(
            self._api,
            self.frame.namespace,
            render.worker_selector(self.frame),
            lambda tag, unit: self._form.unit(self.frame, spec.components[tag], unit),
            self._form,
        )
        self.watch = watch_of(self._api, self.frame, self._changed)
        self.launcher.follow(self.watch)
        self._place = Place(self._api, self.frame, self.watch, self._form)
        self._on_end: Callable[[str], object] = lambda _reason: None
        self._pod = ""
        self._files: Mapping[str, str] = {}

    @property
    def name(self) -> str:
        return self.frame.name

    @property
    def manager(self) -> str:
        return self.frame.manager

    @property
    def starts_again(self) -> bool:
        return self._form.starts_again

    async def begin(self, on_end: Callable[[str], object]) -> None:
        self._on_end = on_end
        await self.watch.start()

    async def make(self, files: Mapping[str, str], start_s: float) -> None:
        self._files = files
        await self._place.create(self._framed, files, start_s)

    def _framed(self, uid: str) -> render.Frame:
        self.frame = dataclasses.replace(self.frame, root_uid=uid)
        return self.frame

    async def scheduler(self, start_s: float) -> str:
        pod = await self._place.scheduler_pod(start_s)
        self._pod = pod["metadata"]["name"]
        return f"tls://{pod['status']['podIP']}:{render.PORT}"

    def tunnel(self) -> BackgroundTunnel:
        """Return a tunnel through the API server to the relay in the scheduler's pod."""
        return tunnel_to(
            self.frame.options["context"],
            self.frame.namespace,
            self._pod,
            RELAY_PORT,
            kept_s=self._kept_s,
        )

    async def add_workers(self, configs: Mapping[str, WorkerConfig]) -> None:
        parts = (self._place.add_workers(tag, config) for tag, config in configs.items())
        await asyncio.gather(*parts)

    async def start_manager(self) -> None:
        place = {"context": "", "namespace": self.frame.namespace, "owner": self.frame.owner}
        files = manager_files(self._files, self.manager, place)
        files[PLACE] = json.dumps(facts_of(self.frame))
        for thing in manager_parts(self.frame, self._form, files, (), secrets.token_hex(3)):
            await self._place.add(thing)

    async def manager_state(self) -> ProgramState:
        pods = [pod for pod in self.watch.pods.values() if label(pod, ROLE) == MANAGING]
        pod = max(pods, key=lambda its: str(its["metadata"]["creationTimestamp"]), default=None)
        if pod is None:
            return ProgramState("pending", "its pod has not been made yet")
        seen = observation(pod)
        if seen.state is not UnitState.ENDED:
            state = "running" if seen.state is UnitState.RUNNING else "pending"
            return ProgramState(state, seen.reason)
        output = await self._place.logs(pod["metadata"]["name"])
        return ProgramState("failed", f"its pod has ended: {seen.reason}{output}")

    async def limit_life(self, seconds: float | None) -> None:
        await self._place.limit_life(seconds)

    def _changed(self, pod: Mapping[str, Any], gone: bool) -> None:
        if label(pod, ROLE) != SCHEDULER:
            self.launcher.noted(pod, gone)
            return
        seen = observation(self._form.first_life(None, pod), gone=gone)
        if self._pod and seen.state is UnitState.ENDED:
            self._on_end(f"the scheduler's pod has ended: {seen.reason}")

    def all_ends(self) -> None:
        self.launcher.all_ends()

    async def remove(self) -> None:
        await self._place.remove()

    async def close(self) -> None:
        await self.watch.close()
        await self._api.close()
