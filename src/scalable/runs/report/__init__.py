"""Reports of recorded runs as plain text, as JSON, and as an HTML page.
A report is built from the run's record alone. The package ``cli`` prints reports.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from scalable.exports import exported_lazily

if TYPE_CHECKING:
    from scalable.runs import Summary
    from scalable.runs.report.failure_list import failed_json, render_failed
    from scalable.runs.report.human import render_human
    from scalable.runs.report.run_report import RunReport, report_on

__all__ = [
    "RunReport",
    "build",
    "failed_json",
    "render_failed",
    "render_human",
    "render_json",
    "report_on",
]

#: Version of the JSON report. It increases when a key is removed or changes its meaning.
_VERSION = 1


def build(runs_dir: str | os.PathLike[str], run_id: str | None = None) -> Summary:
    """Return the summary of the run with an id or a unique prefix, by default the latest.
    The run may be unfinished. RunError if no or several runs match, or a file is unreadable.
    """
    from scalable.runs import find_run, read_run, summarize

    return summarize(read_run(find_run(runs_dir, run_id)))


def render_json(summary: Summary) -> dict[str, Any]:
    """Return the report as a versioned JSON value ``{"version": 1, "report": ...}``."""
    return {"version": _VERSION, "report": summary.to_dict()}


__getattr__, __dir__ = exported_lazily(
    __name__,
    {
        "scalable.runs.report.failure_list": ("failed_json", "render_failed"),
        "scalable.runs.report.human": ("render_human",),
        "scalable.runs.report.run_report": ("RunReport", "report_on"),
    },
)
