"""Dask's settings that leave this package's frames out of tracebacks and of recorded source."""

from __future__ import annotations

import re
from pathlib import Path

import dask

_PACKAGE = Path(__file__).parents[1]
#: Pattern of what each setting leaves out: names of modules in the source that Dask records for a
#: computation, and files in tracebacks.
_PATTERNS = {
    "distributed.diagnostics.computations.ignore-modules": rf"{_PACKAGE.name}(\.|$)",
    "admin.traceback.shorten": rf"{re.escape(str(_PACKAGE))}[\\/]",
}


def leave_out_our_frames() -> None:
    """Add this package to Dask's two settings. A value that is not a list stays as it is."""
    for setting, pattern in _PATTERNS.items():
        known = dask.config.get(setting, None)
        if isinstance(known, list) and pattern not in known:
            dask.config.set({setting: [*known, pattern]})
