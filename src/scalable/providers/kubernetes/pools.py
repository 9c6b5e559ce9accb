"""The pools of a manager that is a program of its own: their pods, and what all pods share."""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from scalable.errors import ProviderError
from scalable.files import read_private
from scalable.manager.launcher import UnitName
from scalable.manager.pools import Pool
from scalable.manager.site import ManagerSite
from scalable.providers.kubernetes import render
from scalable.providers.kubernetes.api import Api, Resource
from scalable.providers.kubernetes.forms import form_of
from scalable.providers.kubernetes.launcher import PodLauncher
from scalable.providers.kubernetes.place import watch_of
from scalable.providers.kubernetes.traits import TRAITS
from scalable.records import ClusterDirectory
from scalable.records.packing import PLACE
from scalable.spec import ComponentSpec, DeploymentSpec
from scalable.worker.config import WorkerConfig, security_fields, serialized_config
from scalable.worker.process_worker import ProcessWorker

logger = logging.getLogger("scalable.providers.kubernetes")


def pools(spec: DeploymentSpec, site: ManagerSite) -> list[Pool]:
    """Return the pools of a manager; see :class:`scalable.providers.base.ClusterLifecycle`."""
    cluster = ClusterDirectory(site.directory.parent.parent)
    frame = stored_frame(cluster, site.manager, spec.options)
    record = cluster.record()
    # A manager in a pod may not make Secrets: who started it has made them.
    secrets = worker_secrets(frame, spec, site.security) if record.remote else []
    launcher = ManagedPods(Api(record.place["context"] or None), frame, spec, secrets)
    return [pool_of(component, launcher, spec) for component in spec.components.values()]


class ManagedPods(PodLauncher):
    """Launcher of the pods of one manager, which outlive the manager's process.

    Parameters
    ----------
    api
        Connection to the API server.
    frame
        Facts that the objects share.
    spec
        The request.
    secrets
        Secrets that are created before the first pod.
    """

    def __init__(
        self,
        api: Api,
        frame: render.Frame,
        spec: DeploymentSpec,
        secrets: Sequence[render.Object] = (),
    ) -> None:
        form = form_of(spec.options)
        super().__init__(
            api,
            frame.namespace,
            render.worker_selector(frame),
            lambda tag, unit: form.unit(frame, spec.components[tag], unit),
            form,
        )
        self._secrets = secrets
        self._pods_watch = watch_of(api, frame, self.noted)
        self.follow(self._pods_watch)

    async def adopt(self) -> dict[UnitName, str]:
        """Begin to watch the pods, and take over those that an earlier process has left."""
        for secret in self._secrets:
            resource = Resource("secrets", secret["metadata"]["namespace"])
            await self._api.create(resource, render.to_body(secret))
        await self._pods_watch.start()
        return await super().adopt()

    async def close(self) -> None:
        """End the watch and all connections."""
        await self._pods_watch.close()
        await self._api.close()


def pool_of(component: ComponentSpec, launcher: PodLauncher, spec: DeploymentSpec) -> Pool:
    """Return the pool of a component."""
    tasks = spec.tasks.values()
    lengths = [task.duration_s or 0.0 for task in tasks if task.component == component.name]
    return Pool(
        component.name,
        launcher,
        {"cls": ProcessWorker, "options": {}},
        component.slots,
        task_s=max(lengths, default=0.0),
        shape=shape_of(component),
    )


def shape_of(component: ComponentSpec) -> dict[str, Any]:
    """Return the resources of a component's workers, as managers report them."""
    return {"cpus": component.cpus, "memory": component.memory, "gpus": component.gpus}


def worker_config(
    component: ComponentSpec, scheduler: str, security: Any, manager: str, *, once: bool = False
) -> WorkerConfig:
    """Return the configuration that the workers of a component share.

    Parameters
    ----------
    component
        Resource profile.
    scheduler, security
        Address and credentials of the scheduler.
    manager
        Id of the manager.
    once
        Whether Kubernetes may start the program again, which a worker then refuses.
    """
    return WorkerConfig(
        scheduler=scheduler,
        name="",
        nthreads=component.slots,
        resources={component.name: component.slots},
        memory_limit=component.memory_bytes or 0,
        host="",
        hand_over=True,
        security=security_fields(security),
        manager=manager,
        once=once,
        dask_config=serialized_config(),
        shares_files=TRAITS.shares_files,
    )


def worker_secrets(frame: render.Frame, spec: DeploymentSpec, security: Any) -> list[render.Object]:
    """Return the Secrets of the workers of a manager."""
    scheduler = render.service_address(frame.cluster_id, frame.namespace)
    return [
        render.worker_secret(frame, c.name, worker_config(c, scheduler, security, frame.manager))
        for c in spec.components.values()
    ]


# Facts about the objects --------------------------------------------------------------------------


def facts_of(frame: render.Frame) -> dict[str, Any]:
    """Return what a manager needs to know about the objects of its cluster, as JSON values."""
    facts = {field: getattr(frame, field) for field in _FACTS}
    return {**facts, "template": dict(frame.template)}


_FACTS = ("cluster_id", "root_uid", "root_name", "owner")


def stored_frame(
    cluster: ClusterDirectory, manager: str, options: Mapping[str, Any]
) -> render.Frame:
    """Return the facts that the objects of one manager share.

    Raises
    ------
    ProviderError
        When the cluster is not one of this place.
    """
    try:
        facts = json.loads(read_private(cluster.path / PLACE))
        frame = render.Frame(manager=manager, options=options, **facts)
    except FileNotFoundError as error:
        raise ProviderError(
            f"cluster {cluster.id} does not run in Kubernetes: pods cannot join it in this version"
        ) from error
    except (ValueError, TypeError) as error:
        raise ProviderError(f"{cluster.path / PLACE} cannot be read: {error}") from error
    return dataclasses.replace(frame, template=frame.template or {})
