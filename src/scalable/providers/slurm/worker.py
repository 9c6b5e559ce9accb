"""What the jobs of a component have in common. Pure."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scalable.providers.slurm.render import UNIT, JobTemplate
from scalable.spec import ComponentSpec


def job_template(
    component: ComponentSpec,
    options: Mapping[str, Any],
    *,
    cluster_id: str,
    config: Path,
    logs: Path,
) -> JobTemplate:
    """Put the template of a component's jobs together.

    Parameters
    ----------
    component
        Its resource profile.
    options
        Options of the target.
    cluster_id
        Part of the names of jobs and workers.
    config
        File with the workers' configuration and credentials, on a shared file system.
    logs
        Directory for their output, on a shared file system.
    """
    tag = component.name
    return JobTemplate(
        name=f"scalable-{cluster_id}-{tag}",
        component=component,
        options=options,
        environment=component.environment(component.slots),
        log=str(logs / f"{file_name(tag)}-%A_%a.log"),
        prefix=f"{tag}-{cluster_id}-",
        command=worker_command(component, options, config),
    )


def worker_command(
    component: ComponentSpec,  # noqa: ARG001
    options: Mapping[str, Any],  # noqa: ARG001
    config: Path,
) -> str:
    """Shell text that becomes a worker, with :data:`UNIT` in place of its name."""
    command = [sys.executable, "-m", "scalable.cluster.worker_process", str(config), UNIT]
    return f"exec {shlex.join(command)}"


def file_name(tag: str) -> str:
    """A tag as part of a file's name."""
    return re.sub(r"[^\w.-]", "_", tag)
