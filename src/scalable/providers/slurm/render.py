"""Batch scripts as strings, and the sbatch options that users may add. This module does no I/O."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from scalable.containers import node_quoted
from scalable.errors import ProviderError
from scalable.model import ComponentSpec, names
from scalable.model.deployment import walltime_of

# Directives ---------------------------------------------------------------------------------------


#: Rule for one directive.
DIRECTIVE = names.Rule(
    "an option of sbatch",
    "write it as on the command line, such as --mail-type=END",
    longest=1024,
    first="-",
    rest=r"\s\S",
)

_COMPONENT = "write {} in the component instead"
_TARGET = "write {} in the target instead"
_NONE = "leave it out"
#: Options of a target that are passed on, sbatch's option for each, and the environment variable
#: with a user's default, which sbatch prefers to the option in a script.
_PASSED = {
    "account": ("account", "SBATCH_ACCOUNT"),
    "queue": ("partition", "SBATCH_PARTITION"),
    "qos": ("qos", "SBATCH_QOS"),
    "constraint": ("constraint", "SBATCH_CONSTRAINT"),
    "reservation": ("reservation", "SBATCH_RESERVATION"),
}
#: Hints about options that scalable sets itself, or that would break its jobs.
_OURS = {
    "job-name": _NONE,
    "comment": _NONE,
    "array": _NONE,
    "output": _TARGET.format("logs"),
    "error": _TARGET.format("logs"),
    "open-mode": _NONE,
    "ntasks": _NONE,
    "cpus-per-task": _COMPONENT.format("cpus"),
    "mem": _COMPONENT.format("memory"),
    "mem-per-cpu": _COMPONENT.format("memory"),
    "mem-per-gpu": _COMPONENT.format("memory"),
    "requeue": _NONE,
    "no-requeue": _NONE,
    "time": _TARGET.format("walltime"),
    **{option: _TARGET.format(name) for name, (option, _) in _PASSED.items()},
    "clusters": _NONE,
    "parsable": _NONE,
    "test-only": _NONE,
    "wait": _NONE,
    "wrap": _NONE,
    "uid": _NONE,
    "gid": _NONE,
    "help": _NONE,
    "usage": _NONE,
    "version": _NONE,
}
_SHORT = {
    "A": "account",
    "a": "array",
    "C": "constraint",
    "c": "cpus-per-task",
    "e": "error",
    "h": "help",
    "J": "job-name",
    "M": "clusters",
    "n": "ntasks",
    "o": "output",
    "p": "partition",
    "q": "qos",
    "t": "time",
    "u": "usage",
    "V": "version",
    "W": "wait",
}
#: Short options without a value: another option may follow in the same word.
_FLAGS = frozenset("hHIkOQRsuvVW")
#: Shortest prefix of a long option that sbatch may accept as an abbreviation.
_SHORTEST = 2


def directive_fault(text: str) -> tuple[str, str] | None:
    """Return the reason why a directive is refused and a hint, or None if it is allowed."""
    fault = DIRECTIVE.fault(text)
    if fault is not None:
        return fault, DIRECTIVE.hint
    for word in re.findall(r"\S+", text):
        option = _ours(word.strip("\"'"))
        if option is not None:
            return f"{text!r} cannot be a directive: scalable sets --{option}", _OURS[option]
    return None


def _ours(word: str) -> str | None:
    """Return the option in ``_OURS`` that a word of a directive sets, or None."""
    if word.startswith("--"):
        given = word[2:].partition("=")[0]
        if given in _OURS:
            return given
        abbreviated = (name for name in _OURS if name.startswith(given))
        return next(abbreviated, None) if len(given) >= _SHORTEST else None
    if not word.startswith("-"):
        return None
    for letter in word[1:]:
        if letter in _SHORT:
            return _SHORT[letter]
        if letter not in _FLAGS:
            return None
    return None


MIB = 2**20
#: Placeholder for the worker's name in a command. Shell quoting leaves it unchanged.
UNIT = "@UNIT@"
#: Set in the scripts of Slurm jobs: the name of the worker. No component may set it.
_UNIT_VARIABLE = "SCALABLE_UNIT"

LOGS = names.Rule(
    "the directory of logs",
    "Slurm reads '%' in the path of a log as a pattern: choose another directory",
    longest=1000,
    refused="%",
    may_begin_with_dash=True,
)


@dataclass(frozen=True)
class JobTemplate:
    """Settings shared by all jobs of one pool."""

    name: str
    component: ComponentSpec
    #: Options of the target, by their names in the manifest.
    options: Mapping[str, Any]
    #: Environment variables of the worker.
    environment: Mapping[str, str] = field(default_factory=dict)
    #: Pattern of the log's path, with Slurm's ``%A`` and ``%a``.
    log: str = "slurm-%A_%a.log"
    #: Prefix of the workers' names. A number follows.
    prefix: str = ""
    #: Shell command that starts the worker, with :data:`UNIT` for its name.
    command: str = "exec true"


def slurm_time(walltime_s: float) -> str:
    """Render seconds for ``sbatch --time``: ``days-hours:minutes:seconds``, rounded up."""
    days, rest = divmod(math.ceil(walltime_s), 86400)
    return f"{days}-{rest // 3600:02d}:{rest % 3600 // 60:02d}:{rest % 60:02d}"


def slurm_memory(memory_bytes: int) -> str:
    """Render bytes for ``sbatch --mem``: whole MiB, rounded up."""
    return f"{math.ceil(memory_bytes / MIB)}M"


#: Options of a script, and the environment variables that take precedence over them.
_OVERRIDDEN_BY = {
    "array": ("SBATCH_ARRAY_INX",),
    "wait": ("SBATCH_WAIT",),
    "error": ("SBATCH_ERROR",),
    "job-name": ("SBATCH_JOB_NAME",),
    "output": ("SBATCH_OUTPUT",),
    "open-mode": ("SBATCH_OPEN_MODE",),
    "no-requeue": ("SBATCH_REQUEUE", "SBATCH_NO_REQUEUE"),
    "mem": ("SBATCH_MEM_PER_CPU", "SBATCH_MEM_PER_GPU", "SBATCH_MEM_PER_NODE"),
    "gres": ("SBATCH_GRES",),
    "time": ("SBATCH_TIMELIMIT",),
    **{option: (variable,) for option, variable in _PASSED.values()},
}


#: Variables that change a job's reservation, or the cluster to which it is sent, whatever
#: its script says. A directive of the target may ask for the same.
_BREAKING = frozenset(
    {
        *("SBATCH_CLUSTERS", "SLURM_CLUSTERS", "SBATCH_CPUS_PER_GPU", "SBATCH_CONTAINER"),
        *("SBATCH_GPUS", "SBATCH_GPUS_PER_NODE", "SBATCH_GPUS_PER_TASK", "SBATCH_TRES_PER_TASK"),
        *("SBATCH_NTASKS_PER_GPU", "SBATCH_BATCH", "SBATCH_DEBUG"),
    }
)


def overriding(script: str) -> set[str]:
    """Return the environment variables that would override options of a batch script."""
    given = {"array", "wait", "error", *re.findall(r"^#SBATCH --([a-z-]+)", script, re.MULTILINE)}
    return {*_BREAKING, *(name for option in given for name in _OVERRIDDEN_BY.get(option, ()))}


def quoted(value: str) -> str:
    """Quote a value for sbatch unless it is one word. Raises ProviderError for control codes."""
    names.PATH.require(value, ProviderError)
    if re.fullmatch(r"[^\s\"'#\\]+", value):
        return value
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def directives(template: JobTemplate) -> list[str]:
    """Return sbatch's options, one per line, or raise ProviderError if one cannot be rendered."""
    component, options = template.component, template.options
    made = [
        f"--job-name={names.JOB.require(template.name, ProviderError)}",
        f"--output={quoted(template.log)}",
        "--open-mode=append",
        "--ntasks=1",
        f"--cpus-per-task={max(1, math.ceil(component.cpus))}",
        # A job that Slurm requeues would start a worker that the reconciler has replaced.
        "--no-requeue",
    ]
    if component.memory_bytes is not None:
        made.append(f"--mem={slurm_memory(component.memory_bytes)}")
    if component.gpus:
        made.append(f"--gres=gpu:{component.gpus}")
    walltime_s = walltime_of(options)
    if walltime_s is not None:
        made.append(f"--time={slurm_time(walltime_s)}")
    for name, (option, _) in _PASSED.items():
        if options.get(name) is not None:
            value = names.ARGUMENT.require(str(options[name]), ProviderError)
            made.append(f"--{option}={quoted(value)}")
    for given in options.get("directives", ()):
        fault = directive_fault(given)
        if fault is None and component.gpus and given.startswith("--gres"):
            fault = (
                f"{given!r} cannot be a directive: component gpus sets --gres",
                "use one of them",
            )
        if fault is not None:
            raise ProviderError(fault[0], hint=fault[1])
        made.append(given)
    return made


def batch_script(template: JobTemplate, first: int = 0) -> str:
    """Return a batch script without secrets, since workers read credentials from a file.
    Raise ProviderError for a name, value or option that cannot be rendered.
    """
    names.check_variables(template.environment, ProviderError)
    lines = ["#!/bin/bash", *(f"#SBATCH {directive}" for directive in directives(template)), ""]
    if UNIT in template.command:
        # Before the component's variables, so that none of them changes a worker's name.
        lines.append(unit_line(template.prefix, first))
    lines += [f"export {name}={node_quoted(v)}" for name, v in template.environment.items()]
    lines += [template.command.replace(UNIT, f'"${_UNIT_VARIABLE}"'), ""]
    return "\n".join(lines)


def unit_line(prefix: str, first: int) -> str:
    """Return the line that sets the worker's name. ``first`` is its number at index 0."""
    return f'{_UNIT_VARIABLE}={shlex.quote(prefix)}"$(({first} + ${{SLURM_ARRAY_TASK_ID:-0}}))"'


def array_indices(indices: Sequence[int]) -> str:
    """Return indices in the notation of ``sbatch --array``: ``0-4,7``."""
    runs: list[list[int]] = []
    for index in sorted(indices):
        if runs and index == runs[-1][1] + 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    return ",".join(f"{low}" if low == high else f"{low}-{high}" for low, high in runs)
