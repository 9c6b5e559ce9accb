"""Report of a run as one self-contained HTML page.
jinja2 escapes every string, and unprintable characters are replaced. The page's policy forbids all
requests, and all scripts and styles but its own.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib import resources
from typing import Any

from jinja2 import Environment
from markupsafe import Markup

from scalable.palette import LIGHT, css_variables
from scalable.runs import Summary
from scalable.runs.report.advice import AdvisedCause, Chain
from scalable.runs.report.comparison import Comparison
from scalable.runs.report.drawings import draw_histogram, draw_timeline, draw_use
from scalable.runs.report.environment import Environment as RunEnvironment
from scalable.runs.report.histograms import TaskDistributions
from scalable.runs.report.human import said_duration, said_moment, said_status
from scalable.runs.report.table import on_one_line, printable, shorten
from scalable.runs.report.timeline import Timeline
from scalable.runs.report.usage import PoolUse
from scalable.units import counted, format_amount, format_bytes, format_duration
from scalable.views.overview_tables import cache_in_words
from scalable.views.templates import above_notebooks, escaping_environment, trusted

#: Maximum rows of the table of task names, and maximum characters of a name or a block.
_TASKS, _NAME, _BLOCK = 100, 90, 20_000
#: Style rules that undo those of notebooks.
_IN_NOTEBOOK = (
    ".sr dt,.sr dd{float:none;width:auto;padding:0}.sr dt{font-weight:400}"
    ".sr tr,.sr tbody tr:nth-child(odd),.sr tbody tr:hover{background:transparent}"
)
_PAGE = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{{ policy }}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{{ title|name }}</title>
<style>{{ style }}</style>
</head>
<body><main class="sr">{{ body }}</main><script>{{ script }}</script></body>
</html>
"""


def render_page(report: ReportParts) -> str:
    """Return the report as a whole page."""
    style = f"html{{color-scheme:light dark}}body{{margin:0}}\n{_style()}"
    script = _resource_text("page.js")
    policy = (
        f"default-src 'none'; style-src {_digest(style)}; script-src {_digest(script)}; "
        "base-uri 'none'; form-action 'none'"
    )
    page: str = (
        _environment()
        .from_string(_PAGE)
        .render(
            policy=policy,
            title=f"Run {report.summary.run_id}",
            style=trusted(style),
            script=trusted(script),
            body=_body(report),
        )
    )
    return page


def render_part(report: ReportParts) -> str:
    """Return the report as a part of another page, such as a notebook, without scripts."""
    style = above_notebooks("sr", f"{_style()}{_IN_NOTEBOOK}")
    return f'<div class="sr"><style>{style}</style>{_body(report)}</div>'


def _body(report: ReportParts) -> Markup:
    summary = report.summary
    names = sorted(
        summary.task_names.items(),
        key=lambda item: -(item[1].duration_s.total if item[1].duration_s else 0.0),
    )
    reserved = {use.tag: use.reserved_memory for use in report.pools}

    def reserved_of(task: TaskDistributions) -> int | None:
        return next((amount for tag in task.tags if (amount := reserved.get(tag))), None)

    currency = "" if summary.cost is None else summary.cost.currency
    template = _environment().from_string(_resource_text("body.html"))
    written = template.render(
        report=report,
        status=said_status(summary),
        started=said_moment(summary.started_at),
        duration=said_duration(summary),
        remembered=cache_in_words(summary.remembered),
        workers=counted(sum(pool.started for pool in summary.workers.values()), "worker"),
        tasks=names[:_TASKS],
        more_tasks=max(0, len(names) - _TASKS),
        seconds=report.timeline.end - report.timeline.begin,
        reserved_of=reserved_of,
        amount=partial(format_amount, unit=currency),
    )
    return trusted(written)


@functools.cache
def _environment() -> Environment:
    environment = escaping_environment(printable)
    environment.filters |= {
        "name": lambda value: shorten(on_one_line(str(value)), _NAME),
        "block": lambda value: shorten(printable(str(value)), _BLOCK),
        "firsts": _firsts,
    }
    environment.globals |= {
        "time": format_duration,
        "size": format_bytes,
        "whole": "{:.0f}".format,
        "draw_timeline": draw_timeline,
        "draw_use": draw_use,
        "draw_histogram": draw_histogram,
    }
    return environment


def _firsts(values: Mapping[str, Any], count: int) -> list[tuple[str, Any]]:
    return list(itertools.islice(values.items(), count))


@functools.cache
def _style() -> str:
    fills = "".join(f".sr .f{n}{{fill:var(--task-{n})}}" for n in range(len(LIGHT)))
    return f"{css_variables()}{_resource_text('page.css')}{fills}"


@functools.cache
def _resource_text(name: str) -> str:
    return resources.files(__package__ or "").joinpath(name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


# Parts of the report of a run, from which text, page and JSON are rendered ------------------------


@dataclass(frozen=True)
class ReportParts:
    """Contents of the report of one run."""

    summary: Summary
    #: Predictions of the plan next to the actual values.
    planned: Comparison
    #: Workers over time.
    timeline: Timeline
    pools: tuple[PoolUse, ...] = ()
    #: Distributions of the task names with the longest total time.
    tasks: tuple[TaskDistributions, ...] = ()
    #: Most frequent causes of failures, and the number of failures with other causes.
    causes: tuple[AdvisedCause, ...] = ()
    other_failures: int = 0
    #: Longest chain of tasks that waited for each other, or None.
    chain: Chain | None = None
    environment: RunEnvironment = field(default_factory=RunEnvironment)
    #: Advice for the next run, as sentences.
    advice: tuple[str, ...] = ()
