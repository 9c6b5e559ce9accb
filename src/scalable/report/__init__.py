"""Show a recorded run to people (``render_human``) and to programs (``render_json``).

Everything shown comes from the run's record. Nothing here prints, and nothing here changes a run.
"""

from __future__ import annotations

import os
from typing import Any

from scalable.report.human import render_human
from scalable.telemetry import Summary, find_run, read_run, summarize

__all__ = ["build", "render_human", "render_json"]

#: Rises when a key of the JSON report goes or changes its meaning.
_VERSION = 1


def build(runs_dir: str | os.PathLike[str], run_id: str | None = None) -> Summary:
    """Add up a recorded run, as it stands now.

    Parameters
    ----------
    runs_dir
        Directory that holds the runs.
    run_id
        A run's id or the beginning of it; None means the run that started last.

    Raises
    ------
    RunError
        When there is no such run, or it cannot be read.
    """
    return summarize(read_run(find_run(runs_dir, run_id)))


def render_json(summary: Summary) -> dict[str, Any]:
    """The report as one versioned JSON value: ``{"version": 1, "report": summary.to_dict()}``."""
    return {"version": _VERSION, "report": summary.to_dict()}
