"""Factory of clusters for the sidebar's "+NEW" and for dask-ctl."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

from scalable.clusters.creation import DetachOptions
from scalable.clusters.record import default_name
from scalable.clusters.services import wait_until_ready
from scalable.providers.registry import provider_traits
from scalable.session import ScalableSession

if TYPE_CHECKING:
    from scalable.client.attached import DiscoveredCluster
    from scalable.records import AccessFile

READY_TIMEOUT_S = 600.0


def lab_cluster(
    manifest: str | os.PathLike[str] | None = None,
    target: str | None = None,
    name: str | None = None,
    *,
    dashboard_address: str | None = None,
    asynchronous: bool = True,
) -> Any:
    """Start a detached cluster, and return a ``DiscoveredCluster``, or an awaitable of one.
    ``close()`` stops the cluster for all clients, because tools stop a cluster by closing it. The
    default name consists of project and target, with a number if it is taken. ``dashboard_address``
    is as for ``scalable up --dashboard``, by default the target's or any free port of this machine.
    """
    if asynchronous:
        return _started(manifest, target, name, dashboard_address)
    from scalable.client.attached import DiscoveredCluster

    return DiscoveredCluster(_ready(manifest, target, name, dashboard_address), owner=True)


async def _started(*request: Any) -> DiscoveredCluster:
    from scalable.client.attached import DiscoveredCluster

    access = await asyncio.to_thread(_ready, *request)
    return await DiscoveredCluster(access, asynchronous=True, owner=True)


def _ready(
    manifest: str | os.PathLike[str] | None,
    target: str | None,
    name: str | None,
    dashboard_address: str | None,
) -> AccessFile:
    from scalable.records import AccessFile, all_directories

    session = ScalableSession.from_yaml(manifest, target)
    taken = {directory.record().name for directory in all_directories()[0]}
    wanted = name or default_name(session.spec)
    numbered = (wanted if n == 1 else f"{wanted}-{n}" for n in range(1, len(taken) + 2))
    if not provider_traits(session.spec.provider_name).remote:
        own = session.spec.options.get("dashboard_address")
        dashboard_address = dashboard_address or own or ":0"  # any free port, on loopback
    options = DetachOptions(
        name=next(n for n in numbered if n not in taken), dashboard_address=dashboard_address
    )
    directory = session.create(session.plan(), options)
    wait_until_ready(directory, timeout_s=READY_TIMEOUT_S)
    return AccessFile.of(directory)
