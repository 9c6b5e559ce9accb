"""Batch scripts. Pure."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from scalable.spec import ComponentSpec
from scalable.spec.deployment import walltime_of

MIB = 2**20
#: Stands for the worker's name in a command; no quoting changes it.
UNIT = "@UNIT@"


@dataclass(frozen=True)
class JobTemplate:
    """What the jobs of one pool have in common.

    Attributes
    ----------
    name
        Name of the job, see :mod:`scalable.providers.slurm.names`.
    component
        Resource profile of a worker.
    options
        Options of the target, by their names in the manifest.
    environment
        Variables of the worker.
    log
        Pattern for the log's path, with Slurm's ``%A`` and ``%a``.
    prefix
        What the names of the pool's workers begin with; a number follows.
    command
        Shell text that becomes the worker, with :data:`UNIT` in place of its name.
    """

    name: str
    component: ComponentSpec
    options: Mapping[str, Any]
    environment: Mapping[str, str] = field(default_factory=dict)
    log: str = "slurm-%A_%a.log"
    prefix: str = ""
    command: str = "exec true"


def slurm_time(walltime_s: float) -> str:
    """Render seconds for ``sbatch --time``: ``days-hours:minutes:seconds``, rounded up."""
    days, rest = divmod(math.ceil(walltime_s), 86400)
    return f"{days}-{rest // 3600:02d}:{rest % 3600 // 60:02d}:{rest % 60:02d}"


def slurm_memory(memory_bytes: int) -> str:
    """Render bytes for ``sbatch --mem``: whole MiB, rounded up."""
    return f"{math.ceil(memory_bytes / MIB)}M"


#: Options of a script -> the variables by which users give them a default. sbatch lets the
#: variables win over the script.
_OVERRIDDEN_BY = {
    "array": ("SBATCH_ARRAY_INX",),
    "job-name": ("SBATCH_JOB_NAME",),
    "output": ("SBATCH_OUTPUT",),
    "open-mode": ("SBATCH_OPEN_MODE",),
    "no-requeue": ("SBATCH_REQUEUE", "SBATCH_NO_REQUEUE"),
    "mem": ("SBATCH_MEM_PER_CPU", "SBATCH_MEM_PER_GPU", "SBATCH_MEM_PER_NODE"),
    "gres": ("SBATCH_GRES",),
    "time": ("SBATCH_TIMELIMIT",),
    "account": ("SBATCH_ACCOUNT",),
    "partition": ("SBATCH_PARTITION",),
    "qos": ("SBATCH_QOS",),
    "constraint": ("SBATCH_CONSTRAINT",),
    "reservation": ("SBATCH_RESERVATION",),
}


def overriding(script: str) -> set[str]:
    """Variables of sbatch that would win over what a script says."""
    given = {"array", *re.findall(r"^#SBATCH --([a-z-]+)", script, re.MULTILINE)}
    return {name for option in given for name in _OVERRIDDEN_BY.get(option, ())}


def quoted(value: str) -> str:
    """A value as sbatch reads it in a script: in double quotes where it is more than one word."""
    if re.fullmatch(r"[^\s\"'#\\]+", value):
        return value
    if "\n" in value or "\r" in value:
        raise ValueError(f"{value!r} has several lines: it cannot stand in a batch script")
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def directives(template: JobTemplate) -> list[str]:
    """The options of sbatch, one for each line of the script."""
    component, options = template.component, template.options
    made = [
        f"--job-name={template.name}",
        f"--output={quoted(template.log)}",
        "--open-mode=append",
        "--ntasks=1",
        f"--cpus-per-task={max(1, math.ceil(component.cpus))}",
        # A job that Slurm queues again would come back under a name that was replaced already.
        "--no-requeue",
    ]
    if component.memory_bytes is not None:
        made.append(f"--mem={slurm_memory(component.memory_bytes)}")
    if component.gpus:
        made.append(f"--gres=gpu:{component.gpus}")
    walltime_s = walltime_of(options)
    if walltime_s is not None:
        made.append(f"--time={slurm_time(walltime_s)}")
    named = {"queue": "partition"}
    chosen = [o for o in ("account", "queue", "qos", "constraint", "reservation") if options.get(o)]
    made += [f"--{named.get(option, option)}={quoted(str(options[option]))}" for option in chosen]
    return [*made, *options.get("directives", ())]


def batch_script(template: JobTemplate, first: int = 0) -> str:
    """The whole script. It holds no secret: credentials are read from a file at run time.

    Parameters
    ----------
    template
        What the jobs of the pool have in common.
    first
        Number of the worker whose index in the array is 0.
    """
    lines = ["#!/bin/bash", *(f"#SBATCH {directive}" for directive in directives(template)), ""]
    lines += [f"export {name}={shlex.quote(v)}" for name, v in template.environment.items()]
    if UNIT in template.command:
        lines.append(unit_line(template.prefix, first))
    lines += [template.command.replace(UNIT, '"$UNIT"'), ""]
    return "\n".join(lines)


def unit_line(prefix: str, first: int) -> str:
    """Shell text that puts the worker's name into ``UNIT``.

    Parameters
    ----------
    prefix
        What the names of the pool's workers begin with.
    first
        Number of the worker whose index is 0.
    """
    return f'UNIT={shlex.quote(prefix)}"$(({first} + ${{SLURM_ARRAY_TASK_ID:-0}}))"'


def array_indices(indices: Sequence[int]) -> str:
    """Indices as ``sbatch --array`` takes them, in runs: ``0-4,7``."""
    runs: list[list[int]] = []
    for index in sorted(indices):
        if runs and index == runs[-1][1] + 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    return ",".join(f"{low}" if low == high else f"{low}-{high}" for low, high in runs)
