"""`RunReport`: a run for the terminal, for notebooks and for files."""

from __future__ import annotations

import os
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from scalable.files import read_regular
from scalable.runs import RunRecord, summary_of
from scalable.runs.report.advice import advise, causes_of, longest_chain
from scalable.runs.report.comparison import ReadCalls, compare_with_plan
from scalable.runs.report.environment import environment_of
from scalable.runs.report.human import render_human
from scalable.runs.report.page import ReportParts
from scalable.runs.report.spans import last_moment, presences
from scalable.runs.report.timeline import make_timeline
from scalable.runs.report.usage import PoolUse, pool_uses
from scalable.storage import without_secrets

#: Version of the JSON report. It increases when a key is removed or changes its meaning.
VERSION = 1


class RunReport(ReportParts):
    """Report of a run with display methods, and the attributes of :class:`ReportParts`."""

    def to_dict(self) -> dict[str, Any]:
        """Return the report, without timeline and distributions, as a versioned JSON value."""
        more = {
            "plan_and_actual": self.planned.to_dict(),
            "pools": [_pool(use) for use in self.pools],
            "causes": [asdict(cause) for cause in self.causes],
            "longest_chain": None if self.chain is None else asdict(self.chain),
            "environment": asdict(self.environment),
            "advice": list(self.advice),
        }
        return {"version": VERSION, "report": {**self.summary.to_dict(), **more}}

    def to_html(self) -> str:
        from scalable.runs.report.page import render_page

        return render_page(self)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the report as an HTML page, replacing an existing file, and return its path."""
        from scalable.files import write_whole

        file = Path(path).absolute()
        write_whole(file, self.to_html())
        return file

    def _repr_html_(self) -> str:
        from scalable.runs.report.page import render_part

        return render_part(self)

    def __str__(self) -> str:
        return render_human(self.summary)

    def __repr__(self) -> str:
        return f"<RunReport of {self.summary.run_id}: {self.summary.status}>"


def report_on(record: RunRecord) -> RunReport:
    """Return the report of a finished or running run."""
    read = ReadCalls(record.tasks)
    summary = summary_of(record, read.calls)
    until = last_moment(record, read.last_moment)
    spans = read.spans.until(until)
    present = presences(record.workers, until)
    began = _epoch(summary.started_at)
    moments = [span.begin for span in spans] + [presence.begin for presence in present]
    first = min(moments, default=until) if began is None else min([began, *moments])
    within = (first, max(first, until))
    pools = pool_uses(record, spans, read.peaks, present, within, summary.cost)
    chain = longest_chain(record.tasks) if read.in_graph else None
    causes, others = causes_of(record.failures)
    totals = {
        name: task.duration_s.total if task.duration_s else 0.0
        for name, task in summary.task_names.items()
    }
    return RunReport(
        summary=summary,
        planned=compare_with_plan(record, read, summary, present),
        timeline=make_timeline(spans, present, record.scaling, within),
        pools=pools,
        tasks=read.values.distributions(sorted(totals, key=lambda name: -totals[name])),
        causes=tuple(causes),
        other_failures=others,
        chain=chain,
        environment=environment_of(record, shown_manifest(record.path)),
        advice=advise(pools, spans, present, chain),
    )


def _pool(use: PoolUse) -> dict[str, Any]:
    values = {**asdict(use), "share": use.share}
    return {key: value for key, value in values.items() if key not in ("connected", "busy")}


def _epoch(moment: str | None) -> float | None:
    try:
        read = datetime.fromisoformat(moment or "")
    except ValueError:
        return None
    return (read if read.tzinfo else read.replace(tzinfo=UTC)).timestamp()


# Manifests ----------------------------------------------------------------------------------------

#: Largest size in bytes of a manifest that is shown.
LARGEST = 100_000
_HIDDEN = "(left out)"
#: Maximum depth of a manifest that is shown.
_DEPTH = 20


def shown_manifest(run: Path) -> str:
    """Return a run's manifest as YAML without the variables' values, or "" if unreadable."""
    file = run / "manifest.yaml"
    try:
        if file.stat().st_size > LARGEST:
            return ""
        text = read_regular(file).decode("utf-8")
        # Our manifests have no aliases, which can make a short string very large.
        if "*" in text and any(isinstance(e, yaml.AliasEvent) for e in yaml.parse(text)):
            return ""
        value = yaml.safe_load(text)
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        return ""
    if not isinstance(value, dict):
        return ""
    shown: str = yaml.safe_dump(_without_secrets(value), sort_keys=False, allow_unicode=True)
    return shown


def _without_secrets(value: Any, depth: int = 0) -> Any:
    if depth > _DEPTH:
        return _HIDDEN
    if isinstance(value, dict):
        return {
            str(key): dict.fromkeys(map(str, inner), _HIDDEN)
            if key == "env" and isinstance(inner, dict)
            else _HIDDEN
            if key == "env"
            else _without_secrets(inner, depth + 1)
            for key, inner in value.items()
        }
    if isinstance(value, list):
        return [_without_secrets(inner, depth + 1) for inner in value]
    return without_secrets(value) if isinstance(value, str) and "://" in value else value
