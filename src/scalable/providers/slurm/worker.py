"""Construction of the batch job for a component's workers. Nothing is submitted."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalable.containers import ContainerRequest, render_batch, request_for, setup_entry
from scalable.model import ComponentSpec
from scalable.protocol.code import interpreter_options
from scalable.providers.slurm.render import UNIT, JobTemplate

#: Variables of the job that a worker in a container reads.
JOB_VARIABLES = ("SLURM_JOB_ID", "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID")
#: Seconds from SIGTERM until a container is killed: more than a worker needs to hand over its
#: results, less than Slurm's usual KillWait.
GRACE_S = 25


@dataclass(frozen=True)
class JobRequest:
    """Properties that determine the jobs of one component."""

    component: ComponentSpec
    options: Mapping[str, Any]
    name: str
    #: File with the workers' configuration and credentials, on a shared file system.
    config: Path
    #: Directory at which relative paths of the component start.
    directory: Path
    #: Directory of the workflow's script, to mount into a container, or empty.
    script_dir: str = ""
    #: Whether the jobs will be started, so that mounts have to exist here.
    starts: bool = True

    @property
    def preload(self) -> list[str]:
        """List with the preload script's absolute path, empty without a script."""
        script = self.component.preload_script
        return [] if script is None else [str((self.directory / script).resolve())]


def job_template(request: JobRequest, *, prefix: str, logs: Path) -> JobTemplate:
    """Return the template of a component's jobs. ``logs`` is on a shared file system."""
    component = request.component
    return JobTemplate(
        name=request.name,
        component=component,
        options=request.options,
        environment={} if component.image else component.environment(component.slots),
        log=str(logs / f"{file_name(component.name)}-%A_%a.log"),
        prefix=prefix,
        command=worker_command(request),
    )


def worker_command(request: JobRequest) -> str:
    """Return the shell command that starts a worker, with :data:`UNIT` as its name."""
    config = str(request.config)
    program = [
        *interpreter_options(Path.cwd()),
        "-m",
        "scalable.worker.program",
        config,
        UNIT,
        *request.preload,
    ]
    container = container_of(request)
    if container is None:
        python = request.component.python or sys.executable
        entry = setup_entry(request.component.setup, "bash")
        return f"exec {shlex.join([*entry, python, *program])}"
    command = [container.python, *program]
    return render_batch(container, command, inherit=JOB_VARIABLES, grace_s=GRACE_S)


def container_of(request: JobRequest) -> ContainerRequest | None:
    """Return the container of a component's workers, or None."""
    component = request.component
    named = request.options.get("container_runtime") or "auto"
    paths = [str(request.config.parent), *request.preload]
    paths += [str(Path(request.script_dir).resolve())] if request.script_dir else []
    return request_for(
        component,
        named,
        unit=request.name.rpartition("scalable-")[2],
        environment=component.environment(component.slots),
        mounts={path: path for path in paths},
        which=shutil.which if named == "auto" else lambda program: program,
        exist=request.starts,
    )


def file_name(tag: str) -> str:
    """Replace the characters in a tag or worker name that file names cannot contain."""
    return re.sub(r"[^\w.-]", "_", tag)
