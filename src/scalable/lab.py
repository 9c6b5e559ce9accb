"""Clusters for the "+NEW" button of Dask's JupyterLab extension.

In the extension's configuration::

    labextension:
      factory:
        module: scalable.lab
        class: lab_cluster
        kwargs: {manifest: /path/to/scalable.yaml, target: local}
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

from scalable.lifecycle.creation import DetachOptions
from scalable.lifecycle.recording import default_name
from scalable.lifecycle.waiting import wait_until_ready
from scalable.session import ScalableSession

if TYPE_CHECKING:
    from scalable.client.attached import AttachedCluster

READY_TIMEOUT_S = 600.0


async def lab_cluster(
    manifest: str | os.PathLike[str] | None = None,
    target: str | None = None,
    name: str | None = None,
    *,
    asynchronous: bool = True,
) -> AttachedCluster:
    """Start a detached cluster, and connect to it.

    The extension ends a cluster by closing it. For that reason ``close()`` of the returned cluster
    ends the cluster for all clients.

    Parameters
    ----------
    manifest, target
        As for :meth:`ScalableSession.from_yaml`.
    name
        Name of the cluster; by default made of project and target, with a number if taken.
    asynchronous
        Value from the extension; only True is useful.

    Returns
    -------
    AttachedCluster
        It has ``id``, ``scheduler_info``, ``scheduler_address``, ``dashboard_link``, ``scale``,
        ``adapt`` and ``close``.
    """
    from scalable.client.attached import AttachedCluster
    from scalable.records import AccessFile, all_directories

    session = ScalableSession.from_yaml(manifest, target)
    taken = {directory.record().name for directory in all_directories()[0]}
    wanted = name or default_name(session.spec)
    numbered = (wanted if n == 1 else f"{wanted}-{n}" for n in range(1, len(taken) + 2))
    options = DetachOptions(name=next(n for n in numbered if n not in taken))
    directory = await asyncio.to_thread(session.create, session.plan(), options)
    await asyncio.to_thread(wait_until_ready, directory, timeout_s=READY_TIMEOUT_S)
    return await AttachedCluster(AccessFile.of(directory), asynchronous=asynchronous, owner=True)
