"""Names and comments of jobs, by which they are found again. Pure.

The name is ``scalable-<cluster>.<rest>``. It can be filtered for on the server, survives in
accounting, and is enough to end what belongs to a cluster. The rest is ``<manager>-<tag>`` for
workers, ``@scheduler`` or ``@manager-<manager>`` for the programs of a cluster that run as jobs.

The comment says what the name cannot: which worker an element is, and to whose directory it
belongs.
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
    """Name of the jobs of a pool."""
    return f"scalable-{cluster_id}.{file_name(manager)}-{file_name(tag)}"


def service_name(cluster_id: str, service: str) -> str:
    """Name of the job that is a cluster's scheduler, or the manager of this id."""
    rest = f"@{SCHEDULER}" if service == SCHEDULER else f"{_MANAGER}{file_name(service)}"
    return f"scalable-{cluster_id}.{rest}"


def cluster_of(name: str) -> str | None:
    """UUID of the cluster that a job belongs to, None for jobs of others."""
    match = _NAME.fullmatch(name)
    return None if match is None else match[1]


def kind_of(name: str) -> str | None:
    """What a job of a cluster is: ``scheduler``, the id of a manager, or None for workers."""
    match = _NAME.fullmatch(name)
    if match is None or not match[2].startswith("@"):
        return None
    return SCHEDULER if match[2] == f"@{SCHEDULER}" else match[2].removeprefix(_MANAGER)


def comment(name: str, directory: Path, **more: Any) -> str:
    """What a job is to carry along.

    Parameters
    ----------
    name
        Name of the job.
    directory
        Private directory of whoever submits it.
    **more
        ``first`` and ``prefix`` of workers: the number of index 0, and what their names begin with;
        ``service`` of others: ``scheduler``, or the id of a manager.
    """
    said = {"scalable": name, "directory": str(directory), **more}
    return json.dumps(said, separators=(",", ":"))


def said_by(element: Element) -> dict[str, Any]:
    """What a job carries along; empty where the site uses the comment for itself."""
    try:
        said = json.loads(element.comment)
    except ValueError:
        return {}
    return said if isinstance(said, dict) and "scalable" in said else {}


def number_of(element: Element) -> int:
    """Number of the worker that an element becomes; only large ones need the comment."""
    first = said_by(element).get("first", 0)
    return (first if isinstance(first, int) else 0) + (element.index or 0)


def worker_of(element: Element) -> str | None:
    """Name of the worker that an element becomes, None where only its comment could say."""
    prefix = said_by(element).get("prefix")
    return f"{prefix}{number_of(element)}" if isinstance(prefix, str) else None
