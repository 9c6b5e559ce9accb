"""The facts about a cluster and a manager that a provider needs to start workers for them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalable.spec import names

#: Directory of the configurations of workers, apart from the files of the manager and the cluster.
COMPONENTS = "components"


@dataclass(frozen=True)
class ManagerSite:
    """Identity, scheduler and directories for the workers of one manager.

    Attributes
    ----------
    cluster_id
        UUID of the cluster. Every unit is marked with this UUID, so that the unit can be found
        again.
    manager
        Id of the manager within its cluster, kept when the manager is restarted.
    incarnation
        Text that makes the unit names of the present manager process unique on the scheduler.
    scheduler
        Address that workers connect to.
    security
        The cluster's ``distributed.Security``, or None.
    directory
        Private directory of the manager, for configuration files with credentials.
    log_dir
        Directory for the workers' output; None to keep the output only while the workers run.
    sys_path
        Directories that workers add to ``sys.path`` to import the workflow's modules.
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


def config_path(directory: Path, tag: str) -> Path:
    """Return the path of the configuration that the workers of a tag share.

    Parameters
    ----------
    directory
        Private directory of the manager.
    tag
        Tag of the pool.

    Raises
    ------
    ClusterError
        When the tag cannot be part of a path.
    """
    return directory / COMPONENTS / f"{names.FILE_NAME.require(tag)}.json"
