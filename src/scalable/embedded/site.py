"""The `ManagerSite` (addresses and directories) of the manager in the user's process."""

from __future__ import annotations

from pathlib import Path

from scalable.embedded.manager import EMBEDDED
from scalable.embedded.pool_cluster import PoolCluster
from scalable.manager.site import ManagerSite
from scalable.protocol.search_path import search_path
from scalable.settings import state_dir


def embedded_site(cluster: PoolCluster, log_dir: Path | None) -> ManagerSite:
    """Return the site of the manager in the user's process. The scheduler has to be running.
    Its directory does not exist yet. It is not next to those of detached clusters, because the
    search for leftover clusters must not find it.
    """
    return ManagerSite(
        cluster_id=cluster.incarnation,
        manager=EMBEDDED,
        incarnation=cluster.incarnation,
        scheduler=cluster.scheduler.contact_address or cluster.scheduler.address,
        security=cluster.security,
        directory=state_dir() / "embedded" / cluster.incarnation,
        log_dir=log_dir,
        sys_path=search_path(),
    )
