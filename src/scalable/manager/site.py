"""The properties of a cluster and a manager that a provider needs to start workers for them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalable.model import names

#: Directory of the workers' configurations, separate from the manager's and cluster's files.
COMPONENTS = "components"


@dataclass(frozen=True)
class ManagerSite:
    """Identity, scheduler and directories for the workers of one manager."""

    #: UUID of the cluster. Every unit is labelled with it, so that it can be found again.
    cluster_id: str
    #: Id of the manager within its cluster, kept when the manager is restarted.
    manager: str
    #: Makes the unit names of the current manager process unique on the scheduler.
    incarnation: str
    #: Address that workers connect to.
    scheduler: str
    #: The cluster's ``distributed.Security``, or None.
    security: Any
    #: Private directory of the manager, for configuration files with credentials.
    directory: Path
    #: Directory for the workers' output. None to keep it only while they run.
    log_dir: Path | None
    #: Directories that workers add to ``sys.path`` to import the workflow's modules.
    sys_path: tuple[str, ...]
    #: Whether workers outlive the manager's process.
    detached: bool = False


def config_path(directory: Path, tag: str) -> Path:
    """Return the path of a tag's worker configuration. Raise ClusterError for an unsafe tag."""
    return directory / COMPONENTS / f"{names.FILE_NAME.require(tag)}.json"
