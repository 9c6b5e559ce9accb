"""What the jobs of a component have in common. Pure."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scalable.containers import ContainerRequest, render_batch, request_for
from scalable.providers.slurm.render import UNIT, JobTemplate
from scalable.spec import ComponentSpec

#: What a worker in a container reads of its job.
JOB_VARIABLES = ("SLURM_JOB_ID", "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID")
#: Seconds after SIGTERM: more than a worker takes to hand over, less than Slurm's usual KillWait.
GRACE_S = 25


def job_template(
    component: ComponentSpec,
    options: Mapping[str, Any],
    *,
    cluster_id: str,
    config: Path,
    logs: Path,
    directory: Path | None = None,
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
    directory
        Where relative paths of components start; by default the current directory.
    """
    tag = component.name
    return JobTemplate(
        name=f"scalable-{cluster_id}-{file_name(tag)}",
        component=component,
        options=options,
        environment={} if component.image else component.environment(component.slots),
        log=str(logs / f"{file_name(tag)}-%A_%a.log"),
        prefix=f"{tag}-{cluster_id}-",
        command=worker_command(
            component, options, config, f"{cluster_id}-{file_name(tag)}", directory
        ),
    )


def worker_command(
    component: ComponentSpec,
    options: Mapping[str, Any],
    config: Path,
    name: str,
    directory: Path | None = None,
) -> str:
    """Shell text that becomes a worker, with :data:`UNIT` in place of its name.

    Parameters
    ----------
    component
        Its resource profile.
    options
        Options of the target.
    config
        File with its configuration and credentials; its directory is mounted into a container.
    name
        Name of the jobs, for the container's.
    directory
        Where the path of a preload script starts.
    """
    preload = preload_script(component, directory)
    program = ["-m", "scalable.cluster.worker_process", str(config), UNIT, *preload]
    container = container_of(component, options, config, name, directory)
    if container is None:
        return f"exec {shlex.join([sys.executable, *program])}"
    command = [container.python, *program]
    return render_batch(container, command, inherit=JOB_VARIABLES, grace_s=GRACE_S)


def preload_script(component: ComponentSpec, directory: Path | None) -> list[str]:
    """Absolute path of a component's preload script, in a list; empty without one."""
    if component.preload_script is None:
        return []
    return [str(((directory or Path.cwd()) / component.preload_script).resolve())]


def container_of(
    component: ComponentSpec,
    options: Mapping[str, Any],
    config: Path,
    name: str,
    directory: Path | None = None,
) -> ContainerRequest | None:
    """The container of a component's workers, None without one.

    A runtime that the target names need not be installed here: it has to be on the nodes.
    """
    named = options.get("container_runtime") or "auto"
    paths = [str(config.parent), *preload_script(component, directory)]
    paths += [str(Path(sys.path[0]).resolve())] if sys.path[0] else []
    return request_for(
        component,
        named,
        unit=name,
        environment=component.environment(component.slots),
        mounts={path: path for path in paths},
        which=shutil.which if named == "auto" else lambda program: program,
    )


def file_name(tag: str) -> str:
    """A tag as part of a file's name."""
    return re.sub(r"[^\w.-]", "_", tag)
