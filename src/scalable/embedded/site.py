"""The site of the manager in this process."""

from __future__ import annotations

import sys
from pathlib import Path

from scalable import settings
from scalable.embedded.manager import EMBEDDED
from scalable.embedded.pool_cluster import PoolCluster
from scalable.manager.site import ManagerSite


def embedded_site(cluster: PoolCluster, log_dir: Path | None) -> ManagerSite:
    """Return the site of the manager in this process.

    Parameters
    ----------
    cluster
        The cluster; its scheduler runs.
    log_dir
        Directory for the workers' output, or None.

    Returns
    -------
    ManagerSite
        Site whose directory does not exist yet. It is not among those of detached clusters: it
        has no record, and the search for leftovers must not find it.
    """
    return ManagerSite(
        cluster_id=cluster.incarnation,
        manager=EMBEDDED,
        incarnation=cluster.incarnation,
        scheduler=cluster.scheduler.contact_address or cluster.scheduler.address,
        security=cluster.security,
        directory=settings.state_dir() / "embedded" / cluster.incarnation,
        log_dir=log_dir,
        sys_path=tuple(entry or str(Path.cwd()) for entry in sys.path),
    )
