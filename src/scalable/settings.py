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
#: Name of the running cluster that sessions attach to instead of starting one.
CLUSTER = "SCALABLE_CLUSTER"

MANIFEST_NAMES = ("scalable.yaml", "scalable.yml", "scalable.toml")
_OFF = frozenset({"0", "false", "no", "off"})


def telemetry_enabled() -> bool:
    """Whether runs are recorded: unless SCALABLE_TELEMETRY is 0, false, no or off."""
    return os.environ.get(TELEMETRY, "").strip().lower() not in _OFF


def runs_dir() -> Path:
    """Directory that holds the runs: SCALABLE_RUNS_DIR, else ``.scalable/runs`` where we are."""
    return Path(os.environ.get(RUNS_DIR) or Path(".scalable") / "runs")


def state_dir() -> Path:
    """Directory for what outlives a process: ``$XDG_STATE_HOME/scalable``."""
    home = os.environ.get("XDG_STATE_HOME")
    return (Path(home) if home else Path.home() / ".local" / "state") / "scalable"


def manifest_path(path: str | os.PathLike[str] | None = None) -> Path:
    """Which manifest to read: the argument, else SCALABLE_MANIFEST, else ``scalable.yaml``.

    Where there is no ``scalable.yaml``, but a ``scalable.yml`` or ``scalable.toml``, it is that.
    """
    asked = path or os.environ.get(MANIFEST)
    if asked:
        return Path(asked)
    found = (Path(name) for name in MANIFEST_NAMES if Path(name).exists())
    return next(found, Path(MANIFEST_NAMES[0]))
