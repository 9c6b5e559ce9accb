"""Environment variables, and where state and runs live."""

from __future__ import annotations

import os
from pathlib import Path

TARGET = "SCALABLE_TARGET"
MANIFEST = "SCALABLE_MANIFEST"
TELEMETRY = "SCALABLE_TELEMETRY"
RUNS_DIR = "SCALABLE_RUNS_DIR"
#: Set by ``scalable run`` for the workflow's process: the target that wins over the script's.
RUN_TARGET = "SCALABLE_RUN_TARGET"
#: Set by ``scalable run``: a file to which each session appends the directory of the run it opens.
RUN_LIST = "SCALABLE_RUN_LIST"

DEFAULT_MANIFEST = "scalable.yaml"
_OFF = frozenset({"0", "false", "no", "off"})


def telemetry_enabled() -> bool:
    """Whether runs are recorded: unless SCALABLE_TELEMETRY is 0, false, no or off."""
    return os.environ.get(TELEMETRY, "").strip().lower() not in _OFF


def runs_dir() -> Path:
    """Directory that holds the runs: SCALABLE_RUNS_DIR, else ``.scalable/runs`` where we are."""
    return Path(os.environ.get(RUNS_DIR) or Path(".scalable") / "runs")


def manifest_path(path: str | os.PathLike[str] | None = None) -> Path:
    """Which manifest to read: the argument, else SCALABLE_MANIFEST, else ``scalable.yaml``."""
    return Path(path or os.environ.get(MANIFEST) or DEFAULT_MANIFEST)


def inside_slurm_job() -> bool:
    """Whether this process runs inside a Slurm job."""
    return "SLURM_JOB_ID" in os.environ
