"""Pools of a manager that is a separate program: their pods, and what all pods share."""

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
from scalable.records import ClusterDirectory
from scalable.records.packing import PLACE
from scalable.remote.workers import pool_of, worker_config
from scalable.spec import DeploymentSpec

logger = logging.getLogger("scalable.providers.kubernetes")


def pools(spec: DeploymentSpec, site: ManagerSite) -> list[Pool]:
    """Return the pools of a manager, as :meth:`.ClusterLifecycle.pools` does."""
    cluster = ClusterDirectory(site.directory.parent.parent)
    frame = stored_frame(cluster, site.manager, spec.options)
    record = cluster.record()
    # A manager in a pod may not create Secrets: its starter has created them.
    secrets = worker_secrets(frame, spec, site.security) if record.remote else []
    launcher = ManagedPods(Api(record.place["context"] or None), frame, spec, secrets)
    return [pool_of(component, launcher, spec) for component in spec.components.values()]


class ManagedPods(PodLauncher):
    """Launcher of one manager's pods, which outlive its process. Creates ``secrets`` first."""

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
        """Start the watch, and take over pods that an earlier process has left."""
        for secret in self._secrets:
            resource = Resource("secrets", secret["metadata"]["namespace"])
            await self._api.create(resource, render.to_body(secret))
        await self._pods_watch.start()
        return await super().adopt()

    async def close(self) -> None:
        await self._pods_watch.close()
        await self._api.close()


def worker_secrets(frame: render.Frame, spec: DeploymentSpec, security: Any) -> list[render.Object]:
    """Return the Secrets of a manager's workers."""
    scheduler = render.service_address(frame.cluster_id, frame.namespace)
    once = form_of(spec.options).starts_again
    return [
        render.worker_secret(
            frame, c.name, worker_config(c, scheduler, security, frame.manager, once=once)
        )
        for c in spec.components.values()
    ]


# Facts about the objects --------------------------------------------------------------------------


def facts_of(frame: render.Frame) -> dict[str, Any]:
    """Return the facts that a manager needs about its cluster's objects, as JSON values."""
    facts = {field: getattr(frame, field) for field in _FACTS}
    return {**facts, "template": dict(frame.template)}


_FACTS = ("cluster_id", "root_uid", "root_name", "owner")


def stored_frame(
    cluster: ClusterDirectory, manager: str, options: Mapping[str, Any]
) -> render.Frame:
    """Return the facts of a manager's objects. Raises ProviderError for clusters elsewhere."""
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
