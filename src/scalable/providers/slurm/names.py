"""Names and comments of jobs, which identify them in the queue. No I/O.
A job is named ``scalable-<cluster>.<rest>``: by name Slurm can filter and cancel jobs. The comment,
JSON, contains the workers' names and the directory of the manager that submitted the job.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from scalable.errors import ProviderError
from scalable.providers.slurm.queue import Element
from scalable.providers.slurm.worker import file_name

SCHEDULER = "scheduler"
#: Maximum number of characters in a comment. slurmctld refuses longer ones.
LONGEST_COMMENT = 1024
_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_NAME = re.compile(rf"scalable-({_UUID})\.(.+)")
_MANAGER = "@manager-"


def pool_name(cluster_id: str, manager: str, tag: str) -> str:
    """Return the name of a pool's jobs. ``@`` is in neither part, so names are unique."""
    return f"scalable-{cluster_id}.{file_name(manager)}@{file_name(tag)}"


def service_name(cluster_id: str, service: str) -> str:
    """Return the name of the job that runs a cluster's scheduler or one of its managers."""
    rest = f"@{SCHEDULER}" if service == SCHEDULER else f"{_MANAGER}{file_name(service)}"
    return f"scalable-{cluster_id}.{rest}"


def cluster_of(name: str) -> str | None:
    """Return the UUID of a job's cluster, or None for other jobs."""
    match = _NAME.fullmatch(name)
    return None if match is None else match[1]


def kind_of(name: str) -> str | None:
    """Return the program of a job: ``scheduler``, a manager's id, or None for workers."""
    match = _NAME.fullmatch(name)
    if match is None or not match[2].startswith("@"):
        return None
    return SCHEDULER if match[2] == f"@{SCHEDULER}" else match[2].removeprefix(_MANAGER)


def comment(name: str, directory: Path, **more: Any) -> str:
    """Return the comment of a job as JSON. Raise ProviderError if it is too long for Slurm.
    ``more`` is ``first`` (number of the worker at array index 0) and ``prefix`` (of worker names)
    for workers, and ``service`` (``scheduler`` or a manager's id) for other programs.
    """
    said = {"scalable": name, "directory": str(directory), **more}
    text = json.dumps(said, separators=(",", ":"))
    if len(text) > LONGEST_COMMENT:
        raise ProviderError(
            f"the comment of job {name} has {len(text)} characters, and Slurm allows "
            f"{LONGEST_COMMENT}",
            hint="shorten the name of the component or of the target, or let XDG_STATE_HOME "
            "name a shorter path",
        )
    return text


def said_by(element: Element) -> dict[str, Any]:
    """Return the fields of a job's comment. Empty if the site has replaced the comment."""
    try:
        said = json.loads(element.comment)
    except ValueError:
        return {}
    return said if isinstance(said, dict) and "scalable" in said else {}


def number_of(element: Element) -> int:
    """Return the number of a job's worker: ``first`` in the comment plus the array index."""
    first = said_by(element).get("first", 0)
    return (first if isinstance(first, int) else 0) + (element.index or 0)


def worker_of(element: Element) -> str | None:
    """Return the name of a job's worker, or None if the site has replaced the job's comment."""
    prefix = said_by(element).get("prefix")
    return f"{prefix}{number_of(element)}" if isinstance(prefix, str) else None
