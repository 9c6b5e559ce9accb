"""Names and comments of jobs, which identify them in the queue. Pure.

The name is ``scalable-<cluster>.<rest>``. Slurm can filter by it, keeps it in its accounting, and
it is enough to cancel every job of a cluster. The rest is ``<manager>-<tag>`` for
workers, ``@scheduler`` or ``@manager-<manager>`` for the programs of a cluster that run as jobs.

The comment holds the rest: the names of the workers, and the directory of the manager that
submitted the job.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from scalable.providers.slurm.queue import Element
from scalable.providers.slurm.worker import file_name

SCHEDULER = "scheduler"
_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_NAME = re.compile(rf"scalable-({_UUID})\.(.+)")
_MANAGER = "@manager-"


def pool_name(cluster_id: str, manager: str, tag: str) -> str:
    """Return the name of the jobs of a pool."""
    return f"scalable-{cluster_id}.{file_name(manager)}-{file_name(tag)}"


def service_name(cluster_id: str, service: str) -> str:
    """Return the name of the job that runs a cluster's scheduler, or the manager of this id."""
    rest = f"@{SCHEDULER}" if service == SCHEDULER else f"{_MANAGER}{file_name(service)}"
    return f"scalable-{cluster_id}.{rest}"


def cluster_of(name: str) -> str | None:
    """Return the UUID of the cluster that a job belongs to; None for other jobs."""
    match = _NAME.fullmatch(name)
    return None if match is None else match[1]


def kind_of(name: str) -> str | None:
    """Return ``scheduler`` or the id of a manager for the job of a service; None for workers."""
    match = _NAME.fullmatch(name)
    if match is None or not match[2].startswith("@"):
        return None
    return SCHEDULER if match[2] == f"@{SCHEDULER}" else match[2].removeprefix(_MANAGER)


def comment(name: str, directory: Path, **more: Any) -> str:
    """Return the comment of a job, as JSON.

    Parameters
    ----------
    name
        Name of the job.
    directory
        Private directory of the process that submits the job.
    **more
        For workers ``first`` and ``prefix``: the number of the worker at index 0, and the
        beginning of the workers' names. For services ``service``: ``scheduler``, or the id of a
        manager.
    """
    said = {"scalable": name, "directory": str(directory), **more}
    return json.dumps(said, separators=(",", ":"))


def said_by(element: Element) -> dict[str, Any]:
    """Return the fields of a job's comment; empty where the site wrote another comment."""
    try:
        said = json.loads(element.comment)
    except ValueError:
        return {}
    return said if isinstance(said, dict) and "scalable" in said else {}


def number_of(element: Element) -> int:
    """Return the number of an element's worker: its index after the ``first`` of its comment."""
    first = said_by(element).get("first", 0)
    return (first if isinstance(first, int) else 0) + (element.index or 0)


def worker_of(element: Element) -> str | None:
    """Return the name of an element's worker; None where its comment was replaced."""
    prefix = said_by(element).get("prefix")
    return f"{prefix}{number_of(element)}" if isinstance(prefix, str) else None
