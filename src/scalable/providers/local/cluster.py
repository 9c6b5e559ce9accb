"""Cluster of the local provider: a scheduler in this process, and its pools."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

from scalable.errors import ProviderError
from scalable.manager.pool_cluster import PoolCluster, embedded_site
from scalable.model import DeploymentSpec
from scalable.protocol.addresses import LOOPBACK
from scalable.protocol.synchronous import CallerThreadPoolExecutor
from scalable.providers.local.fork_server import ForkServerProcess
from scalable.providers.local.render import thread_options
from scalable.scheduler.pool_scheduler import PoolScheduler
from scalable.worker.pool_worker import PoolWorker

#: Seconds in which a connection on this machine must succeed.
CONNECT_TIMEOUT_S = 5.0


class LocalPoolCluster(PoolCluster):
    """A scheduler in this process, and pools of workers on this machine."""

    _provider_name = "local"


def build_cluster(spec: DeploymentSpec, server: ForkServerProcess | None) -> PoolCluster:
    """Start a scheduler with the pools of a spec. After an error nothing is left running."""
    options = spec.options
    processes = bool(options["processes"])
    scheduler: dict[str, Any] = {
        "dashboard": bool(options["dashboard_address"]),
        "dashboard_address": options["dashboard_address"],
    }
    if processes:
        check_loopback()
        scheduler |= {"host": LOOPBACK, "port": 0}
    else:
        scheduler |= {"protocol": "inproc://"}
    cluster = LocalPoolCluster(scheduler={"cls": PoolScheduler, "options": scheduler})
    try:
        if processes:
            from scalable.providers.local.launcher import process_pools  # loads containers

            site = embedded_site(cluster, None if spec.log_dir is None else Path(spec.log_dir))
            cluster.add_pools(process_pools(spec, site, server))
        else:
            _add_thread_pools(cluster, spec)
    except BaseException:
        cluster.close()
        raise
    return cluster


def check_loopback() -> None:
    """Raise ProviderError if processes of this machine cannot connect to each other."""
    try:
        with socket.create_server((LOOPBACK, 0)) as server:
            socket.create_connection(server.getsockname(), CONNECT_TIMEOUT_S).close()
    except OSError as error:
        raise ProviderError(
            f"workers that are processes connect to {LOOPBACK}, which fails here: {error}",
            hint=f"bring the interface lo up, with the address {LOOPBACK}, or use processes: false",
        ) from None


def _add_thread_pools(cluster: PoolCluster, spec: DeploymentSpec) -> None:
    for tag, component in spec.components.items():
        slots, more = spec.options["threads_per_worker"], {}
        if spec.options.get("synchronous"):
            slots, more = max(slots, component.slots), {"executor": CallerThreadPoolExecutor()}
        options = thread_options(component, slots) | more | {"log_dir": spec.log_dir}
        cluster.add_pool(tag, {"cls": PoolWorker, "options": options}, slots=slots)
