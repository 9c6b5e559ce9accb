"""What a place has to know to provision workers for a cluster that may live elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class ManagerSite:
    """Where the workers of one manager belong.

    Attributes
    ----------
    cluster_id
        UUID of the cluster: part of what every unit carries, so that it can be found again.
    manager
        Id of the manager within its cluster; survives the manager's process.
    incarnation
        Text that makes the unit names of this very manager process unique on the scheduler.
    scheduler
        Address that workers connect to.
    security
        The cluster's ``distributed.Security``, or None.
    directory
        The manager's own private directory, for configurations with credentials.
    log_dir
        Directory for the workers' output, or None to keep it only while they run.
    sys_path
        Where workers look for the workflow's modules.
    detached
        Whether workers outlive the manager's process. Otherwise they end with it.
    """

    cluster_id: str
    manager: str
    incarnation: str
    scheduler: str
    security: Any
    directory: Path
    log_dir: Path | None
    sys_path: tuple[str, ...]
    detached: bool = False
