"""Scheduler and managers of a detached cluster as Jobs, and objects of a session's cluster."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from scalable.client.tunnel import BackgroundTunnel
from scalable.errors import NameTakenError
from scalable.files import write_private
from scalable.manager.launcher import UnitState
from scalable.model import ClusterRecord, DeploymentSpec, ProgramState
from scalable.protocol.credentials import security_of
from scalable.protocol.streams import RELAY_PORT
from scalable.providers.kubernetes import objects, render
from scalable.providers.kubernetes.api import KubernetesApi, Resource, ask
from scalable.providers.kubernetes.form import form_of
from scalable.providers.kubernetes.kubeconfig import current_context
from scalable.providers.kubernetes.launcher import (
    PodLauncher,
    facts_of,
    stored_frame,
    worker_secrets,
)
from scalable.providers.kubernetes.objects import manager_parts, read_template
from scalable.providers.kubernetes.permissions import detached_rules, session_rules
from scalable.providers.kubernetes.place import BATCH, NamespacePlace, create, resource_of, watch_of
from scalable.providers.kubernetes.reasons import observation
from scalable.providers.kubernetes.remote import (
    KubernetesPlace,
    PodDial,
    has_ended,
    owner,
    tunnel_to,
)
from scalable.providers.kubernetes.render import (
    CLUSTER,
    MANAGING,
    OWNER,
    ROLE,
    SCHEDULER,
    label,
    root_name,
    selector,
)
from scalable.providers.remote.session_files import manager_files
from scalable.records import ClusterDirectory
from scalable.records.directory import RECORD
from scalable.records.packing import PLACE, packed
from scalable.units import parse_duration
from scalable.worker.config import WorkerConfig

logger = logging.getLogger("scalable.providers.kubernetes")

START_TIMEOUT_S = 60.0
REMOVAL_POLL_S = 0.5


def place_of(options: Mapping[str, Any]) -> dict[str, str]:
    """Return where these target options put a detached cluster: its context and namespace."""
    context = options["context"] or current_context()
    return {"context": context, "namespace": str(options["namespace"])}


class KubernetesServices:
    """Starts detached clusters' schedulers and managers as Jobs (a :class:`.ClusterServices`)."""

    def __init__(self, spec: DeploymentSpec | None) -> None:
        self._spec = spec

    def start(self, directory: Path, service: str, program: Sequence[str], log: Path) -> None:  # noqa: ARG002 - the image has its own Python, and Kubernetes keeps the output
        """Create a program's objects. Raises NameTakenError if a cluster has the name."""
        cluster = ClusterDirectory(directory)
        place = cluster.record().place
        start = self._start_scheduler if service == SCHEDULER else self._start_manager
        assert self._spec is not None
        rules = detached_rules(form_of(self._spec.options).rules, self._spec.options)
        ask(place["context"], lambda api: start(api, cluster, service), START_TIMEOUT_S, rules)

    def state(self, cluster_id: str) -> dict[str, str]:
        try:
            record = ClusterDirectory(ClusterDirectory.parent() / cluster_id).record()
        except FileNotFoundError:
            return {}
        found = KubernetesPlace(record.place).programs(cluster_id)
        return {
            name: its.state for name, its in found.items() if its.state in ("pending", "running")
        }

    # Scheduler ------------------------------------------------------------------------------------

    async def _start_scheduler(
        self, api: KubernetesApi, cluster: ClusterDirectory, _service: str
    ) -> None:
        assert self._spec is not None
        record, spec = cluster.record(), self._spec
        name = await owner(api, record.place["context"])
        frame = render.Frame(
            cluster_id=record.id,
            manager="",
            options=spec.options,
            template=read_template(spec),
            root_name=root_name(name, record.name),
            owner=name,
        )
        deadline = int(parse_duration(spec.options["start_timeout"]) + render.MARGIN_S)
        form = form_of(spec.options)
        made = await _make_root(api, form.root(frame, deadline), record)
        frame = dataclasses.replace(frame, root_uid=made["metadata"]["uid"])
        write_private(cluster.path / PLACE, json.dumps(facts_of(frame)))
        for thing in objects.scheduler_parts(frame, form, _files(frame, cluster)):
            await create(api, thing, form)
        logger.debug("cluster %s: job %s in %s", record.id, frame.root, frame.namespace)

    # Managers -------------------------------------------------------------------------------------

    async def _start_manager(
        self, api: KubernetesApi, cluster: ClusterDirectory, manager: str
    ) -> None:
        assert self._spec is not None
        frame = stored_frame(cluster, manager, self._spec.options)
        jobs = Resource("jobs", frame.namespace, BATCH)
        earlier = {CLUSTER: frame.cluster_id, **objects.marks(frame)}
        found = await api.request("GET", jobs, query={"labelSelector": selector(earlier)})
        for job in found["items"]:
            await api.delete(jobs, job["metadata"]["name"], propagationPolicy="Background")
        files = _files(frame, cluster, manager)
        workers = worker_secrets(frame, self._spec, security_of(cluster.pem()))
        form = form_of(self._spec.options)
        parts = objects.manager_parts(frame, form, files, workers, secrets.token_hex(3))
        for thing in parts:
            await create(api, thing, form)
        logger.debug("cluster %s: manager %s is a job", frame.cluster_id, manager)


async def _make_root(api: KubernetesApi, root: render.Object, record: ClusterRecord) -> Any:
    """Create the root object, after deleting a finished one of that name."""
    resource = resource_of(root)
    name = root["metadata"]["name"]
    while True:
        made = await api.create_root(resource, render.to_body(root))
        if label(made, CLUSTER) == record.id:
            return made
        if not has_ended(made) or label(made, OWNER) != label(root, OWNER):
            raise NameTakenError(
                f"a cluster {record.name!r} already exists in namespace {resource.namespace!r}: "
                f"job {name}",
                hint=f"choose another name, or delete it: scalable down {record.name}",
            )
        logger.debug("job %s of a stopped cluster is deleted", name)
        await api.delete(resource, name, propagationPolicy="Foreground")
        await asyncio.sleep(REMOVAL_POLL_S)


def _files(
    frame: render.Frame, cluster: ClusterDirectory, manager: str | None = None
) -> dict[str, str]:
    """Return a program's files. The site in them is valid inside pods."""
    files = packed(cluster, manager)
    inner = dataclasses.replace(
        cluster.record(),
        place={"context": "", "namespace": frame.namespace, "owner": frame.owner},
    )
    return files | {RECORD: json.dumps(inner.to_dict())}


# Sessions -----------------------------------------------------------------------------------------


class KubernetesSite:
    """A session's cluster (a :class:`.SessionSite`) whose root object owns all other objects."""

    def __init__(self, spec: DeploymentSpec, template: Mapping[str, Any], cluster_id: str) -> None:
        self.frame = render.Frame(cluster_id, spec.target_name, spec.options, template)
        for component in (None, *spec.components.values()):
            render.image_of(self.frame, component)
        self._form = form_of(spec.options)
        self._kept_s = parse_duration(spec.options["reconnect_within"])
        self._api = KubernetesApi(
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
        self._place = NamespacePlace(self._api, self.frame, self.watch, self._form)
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
        name = pod["metadata"]["name"]
        if name != self._pod:
            await PodDial(self._api, self.frame.namespace, name, RELAY_PORT).check()
        self._pod = name
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
            return ProgramState("pending", "its pod has not been created yet")
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
