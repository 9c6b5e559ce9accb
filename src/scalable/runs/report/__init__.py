"""Reports of recorded runs as plain text, as JSON, and as an HTML page.
A report is built from the run's record alone. The package ``cli`` prints reports.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from scalable.exports import exported_lazily

if TYPE_CHECKING:
    from scalable.runs import Summary
    from scalable.runs.report.human import failed_json, render_failed, render_human
    from scalable.runs.report.run_report import RunReport, report_on

__all__ = [
    "RunReport",
    "build",
    "failed_json",
    "render_failed",
    "render_human",
    "report_on",
]


def build(runs_dir: str | os.PathLike[str], run_id: str | None = None) -> Summary:
    """Return the summary of the run with an id or a unique prefix, by default the latest.
    The run may be unfinished. RunError if no or several runs match, or a file is unreadable.
    """
    from scalable.runs import find_run, read_run, summarize

    return summarize(read_run(find_run(runs_dir, run_id)))


__getattr__, __dir__ = exported_lazily(
    __name__,
    {
        "scalable.runs.report.human": ("failed_json", "render_failed", "render_human"),
        "scalable.runs.report.run_report": ("RunReport", "report_on"),
    },
)
