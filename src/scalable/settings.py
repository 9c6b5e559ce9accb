"""Environment variables, and the directories of state and runs.
``docs/reference.py`` makes a table of the variables from the comments above them.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path

from scalable.errors import ClusterError

#: Name of the target, unless your script or ``--target`` sets one.
TARGET = "SCALABLE_TARGET"
#: Path of the manifest, unless a command or your script sets one. Default: ``scalable.yaml``,
#: ``scalable.yml`` or ``scalable.toml`` in the working directory.
MANIFEST = "SCALABLE_MANIFEST"
#: If on, you see the tracebacks of errors that otherwise take one line. Default: off.
DEBUG = "SCALABLE_DEBUG"
#: If off, no runs are recorded. Default: on.
TELEMETRY = "SCALABLE_TELEMETRY"
#: Directory of run records. Default: ``.scalable/runs`` in the working directory.
RUNS_DIR = "SCALABLE_RUNS_DIR"
#: If off, records of failed tasks do not contain the tasks' arguments. Default: on.
RECORD_ARGUMENTS = "SCALABLE_RECORD_ARGUMENTS"
#: If off, processes on one machine send large data through sockets. Default: on.
SHARED_MEMORY = "SCALABLE_SHARED_MEMORY"
#: Set by ``scalable run``: the target that replaces the script's own.
RUN_TARGET = "SCALABLE_RUN_TARGET"
#: Set by ``scalable run``: a file with the plan for sessions on the manifest.
RUN_PLAN = "SCALABLE_RUN_PLAN"
#: Set by ``scalable run``: a file to which each session appends the directory of the run it opens.
RUN_LIST = "SCALABLE_RUN_LIST"
#: Set by ``scalable run``: a file for the overviews of each session's cluster.
RUN_OVERVIEWS = "SCALABLE_RUN_OVERVIEWS"
#: Set by ``scalable run --resume``: the directory of the run whose results are reused.
RESUMED = "SCALABLE_RESUMED"
#: Set by ``scalable run --keep-despite-code``: results are reused despite changed code.
RESUMED_DESPITE_CODE = "SCALABLE_RESUMED_DESPITE_CODE"
#: Set by ``scalable run --synchronous``: tasks run in the threads that wait for them.
SYNCHRONOUS = "SCALABLE_SYNCHRONOUS"
#: Name of the running cluster to which your sessions attach. Without it, they start one.
CLUSTER = "SCALABLE_CLUSTER"
#: Money that a session's cluster may spend. It overrides the target's budget.
BUDGET = "SCALABLE_BUDGET"
#: Maximum size of a file that is uploaded to backends without your file system. Default: 10MiB.
CODE_FILE_LIMIT = "SCALABLE_CODE_FILE_LIMIT"
#: Maximum size of all files that are uploaded to such backends. Default: 64MiB.
CODE_LIMIT = "SCALABLE_CODE_LIMIT"
#: Set in the containers of Kubernetes and clouds: the name of the image.
IMAGE = "SCALABLE_IMAGE"
#: Set for schedulers in containers if clients may have another release of distributed.
ALLOW_VERSION_MISMATCH = "SCALABLE_ALLOW_VERSION_MISMATCH"

#: Name of scalable's directory in a directory of the user.
DIRECTORY = ".scalable"
MANIFEST_NAMES = ("scalable.yaml", "scalable.yml", "scalable.toml")
_OFF = frozenset({"0", "false", "no", "off"})


def telemetry_enabled() -> bool:
    """Return False if SCALABLE_TELEMETRY is 0, false, no or off. Runs are then not recorded."""
    return os.environ.get(TELEMETRY, "").strip().lower() not in _OFF


def records_arguments() -> bool:
    """Return False if SCALABLE_RECORD_ARGUMENTS is 0, false, no or off."""
    return os.environ.get(RECORD_ARGUMENTS, "").strip().lower() not in _OFF


def shares_memory() -> bool:
    """Return False if SCALABLE_SHARED_MEMORY is 0, false, no or off."""
    return os.environ.get(SHARED_MEMORY, "").strip().lower() not in _OFF


def debug() -> bool:
    """Return whether SCALABLE_DEBUG is set to a value other than 0, false, no or off."""
    return os.environ.get(DEBUG, "off").strip().lower() not in _OFF | {""}


def synchronous() -> bool:
    """Return whether SCALABLE_SYNCHRONOUS is set to a value other than 0, false, no or off."""
    return os.environ.get(SYNCHRONOUS, "off").strip().lower() not in _OFF | {""}


def runs_dir() -> Path:
    """Return the directory of runs: SCALABLE_RUNS_DIR, by default ``.scalable/runs``."""
    return Path(os.environ.get(RUNS_DIR) or Path(DIRECTORY) / "runs")


def budget() -> float | None:
    """Return the amount in SCALABLE_BUDGET or None. Raises ClusterError for an invalid amount."""
    written = os.environ.get(BUDGET)
    if not written:
        return None
    try:
        amount = float(written)
    except ValueError:
        amount = math.nan
    if not 0 < amount < math.inf:
        raise ClusterError(
            f"{BUDGET}={written!r} is not a positive amount of money",
            hint="write, for example, 12.50",
        )
    return amount


def state_dir() -> Path:
    """Return ``$XDG_STATE_HOME/scalable``, or raise ClusterError without a home directory."""
    given = os.environ.get("XDG_STATE_HOME")
    if given:
        return Path(given) / "scalable"
    try:
        home = Path.home()
    except RuntimeError as error:
        raise ClusterError(
            f"user {os.geteuid()} has no home directory for the records of clusters",
            hint="set HOME or XDG_STATE_HOME to a directory that only you can change",
        ) from error
    return home / ".local" / "state" / "scalable"


def results_dir() -> Path:
    """Return the directory of cached results, or raise ClusterError without a home directory."""
    given = os.environ.get("XDG_CACHE_HOME")
    try:
        cache = Path(given) if given else Path.home() / ".cache"
    except RuntimeError as error:
        raise ClusterError(
            f"user {os.geteuid()} has no home directory for the cache",
            hint="set HOME or XDG_CACHE_HOME to a directory that only you can change",
        ) from error
    return cache / "scalable" / "results"


#: Variables with which users configure Slurm's commands. Other variables that start with SLURM
#: describe this process's job or step.
_OF_SLURM = frozenset({"SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT", "SLURM_SACK_KEY"})
#: Prefixes of variables that describe a whole job. Tasks need them to start steps in the job.
_OF_JOB = ("SLURM_JOB_", "SLURM_ARRAY_", "SLURM_SUBMIT_", "SLURM_CLUSTER_NAME", "SLURM_JOBID")
#: Prefixes of variables that Slurm sets, also for MPI.
_BY_SLURM = ("SLURM_", "SLURMD_", "PMI_", "PMIX_")


def outside_job(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables for a new job: ``environ`` without those of this process's Slurm job."""
    return _without(environ, ())


def outside_step(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables for workers: ``environ`` without those of this process's job step.
    Otherwise, steps that tasks start would inherit this step's CPUs, memory and ids.
    """
    return _without(environ, _OF_JOB)


def _without(environ: Mapping[str, str], kept: tuple[str, ...]) -> dict[str, str]:
    if "SLURM_JOB_ID" not in environ and "SLURM_JOBID" not in environ:
        return dict(environ)
    return {
        name: value
        for name, value in environ.items()
        if name in _OF_SLURM or not name.startswith(_BY_SLURM) or name.startswith(kept)
    }


def manifest_path(path: str | os.PathLike[str] | None = None) -> Path:
    """Return the path of the manifest: the argument, else SCALABLE_MANIFEST, else the default.
    The default is the first existing file of MANIFEST_NAMES, or ``scalable.yaml``.
    """
    asked = path or os.environ.get(MANIFEST)
    if asked:
        return Path(asked)
    found = (Path(name) for name in MANIFEST_NAMES if Path(name).exists())
    return next(found, Path(MANIFEST_NAMES[0]))
