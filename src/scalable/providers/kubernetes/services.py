"""Scheduler and managers of a detached cluster, as Jobs of Kubernetes."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scalable.errors import NameTakenError
from scalable.files import write_private
from scalable.model import ClusterRecord, DeploymentSpec
from scalable.protocol.credentials import security_of
from scalable.providers.kubernetes import manager_objects, render
from scalable.providers.kubernetes.api import Api, Resource, ask
from scalable.providers.kubernetes.drafts import read_template
from scalable.providers.kubernetes.form import form_of
from scalable.providers.kubernetes.kubeconfig import current_context
from scalable.providers.kubernetes.launcher import facts_of, stored_frame, worker_secrets
from scalable.providers.kubernetes.names import (
    CLUSTER,
    OWNER,
    SCHEDULER,
    label,
    root_name,
    selector,
)
from scalable.providers.kubernetes.permissions import detached_rules
from scalable.providers.kubernetes.place import BATCH, create, resource_of
from scalable.providers.kubernetes.remote import (
    KubernetesPlace,
    has_ended,
    owner,
)
from scalable.records import ClusterDirectory
from scalable.records.directory import RECORD
from scalable.records.packing import PLACE, packed
from scalable.units import parse_duration

logger = logging.getLogger("scalable.providers.kubernetes")

START_TIMEOUT_S = 60.0
REMOVAL_POLL_S = 0.5


def place_of(options: Mapping[str, Any]) -> dict[str, str]:
    """Return the site that the options of a target name for a detached cluster."""
    context = options["context"] or current_context()
    return {"context": context, "namespace": str(options["namespace"])}


class KubernetesServices:
    """Starts detached clusters' schedulers and managers as Jobs (a :class:`.ClusterServices`)."""

    def __init__(self, spec: DeploymentSpec | None) -> None:
        self._spec = spec

    def start(self, directory: Path, service: str, program: Sequence[str], log: Path) -> None:  # noqa: ARG002 - the image has its own Python, and Kubernetes keeps the output
        """Create a program's objects. Raises NameTakenError if a cluster of that name exists."""
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

    async def _start_scheduler(self, api: Api, cluster: ClusterDirectory, _service: str) -> None:
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
        for thing in manager_objects.scheduler_parts(frame, form, _files(frame, cluster)):
            await create(api, thing, form)
        logger.debug("cluster %s: job %s in %s", record.id, frame.root, frame.namespace)

    # Managers -------------------------------------------------------------------------------------

    async def _start_manager(self, api: Api, cluster: ClusterDirectory, manager: str) -> None:
        assert self._spec is not None
        frame = stored_frame(cluster, manager, self._spec.options)
        jobs = Resource("jobs", frame.namespace, BATCH)
        earlier = {CLUSTER: frame.cluster_id, **manager_objects.marks(frame)}
        found = await api.request("GET", jobs, query={"labelSelector": selector(earlier)})
        for job in found["items"]:
            await api.delete(jobs, job["metadata"]["name"], propagationPolicy="Background")
        files = _files(frame, cluster, manager)
        workers = worker_secrets(frame, self._spec, security_of(cluster.pem()))
        form = form_of(self._spec.options)
        parts = manager_objects.manager_parts(frame, form, files, workers, secrets.token_hex(3))
        for thing in parts:
            await create(api, thing, form)
        logger.debug("cluster %s: manager %s is a job", frame.cluster_id, manager)


async def _make_root(api: Api, root: render.Object, record: ClusterRecord) -> Any:
    """Create the root object, after deleting an ended one of that name."""
    resource = resource_of(root)
    name = root["metadata"]["name"]
    while True:
        made = await api.create(resource, render.to_body(root))
        if label(made, CLUSTER) == record.id:
            return made
        if not has_ended(made) or label(made, OWNER) != label(root, OWNER):
            raise NameTakenError(
                f"a cluster {record.name!r} exists already in namespace {resource.namespace!r}: "
                f"job {name}",
                hint=f"choose another name, or end it: scalable down {record.name}",
            )
        logger.debug("job %s of an ended cluster is deleted", name)
        await api.delete(resource, name, propagationPolicy="Foreground")
        await asyncio.sleep(REMOVAL_POLL_S)


def _files(
    frame: render.Frame, cluster: ClusterDirectory, manager: str | None = None
) -> dict[str, str]:
    """Return a program's files, with the site as pods name it."""
    files = packed(cluster, manager)
    inner = dataclasses.replace(
        cluster.record(),
        place={"context": "", "namespace": frame.namespace, "owner": frame.owner},
    )
    return files | {RECORD: json.dumps(inner.to_dict())}
