"""The facts that a place needs to provision workers for a cluster."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class ManagerSite:
    """The cluster and the directories of one manager's workers.

    Attributes
    ----------
    cluster_id
        UUID of the cluster. Every unit carries it, so that it can be found again.
    manager
        Id of the manager within its cluster, the same for each of its processes in turn.
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
        Directories of the workflow's modules, for the workers.
    detached
        Whether workers outlive the manager's process instead of ending with it.
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
