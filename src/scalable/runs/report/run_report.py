"""`RunReport`: a run for the terminal, for notebooks and for files.
The page of a report is that of the dashboard with its data: one self-contained file. All strings of
the run are in a block of data, which the page draws as text. Its policy forbids all requests, and
all scripts and styles but its own.
"""

from __future__ import annotations

import base64
import hashlib
import html
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from scalable.errors import RunError
from scalable.files import read_regular, write_whole
from scalable.harmless import one_line
from scalable.runs.calls import Chain, Presence, RecordedTasks, Span, presences
from scalable.runs.failed import FailureCause, cut, first_line
from scalable.runs.reading import RunRecord
from scalable.runs.report.comparison import Comparison, compare_with_plan, compared
from scalable.runs.report.usage import (
    LONGEST_NAME,
    POOLS_OF_RUN,
    PoolUse,
    advise,
    charts_of,
    decisions_of_run,
    make_timeline,
    pool_uses,
    task_rows,
)
from scalable.runs.streams import mapping, number, text
from scalable.runs.summary import CostSummary, Summary, counts_of, epoch, summarize
from scalable.storage import without_secrets
from scalable.units import counted, format_bytes, format_duration
from scalable.views.cluster_text import cache_in_words, reasons_in_words
from scalable.views.columns import TASKS, parts_of
from scalable.views.explanation import short_key
from scalable.views.page import Piece, failure, page_file, progress, table, text_of, to_json
from scalable.views.tables import WIDTH, counts_in_words, fitted, money, text_table

#: Version of the JSON report. It increases when a key is removed or changes its meaning.
VERSION = 1
#: Maximum number of rows with pools, decisions or results.
_POOLS, _DECISIONS, _RESULTS = 60, 200, 100
#: Maximum number of causes of failures, of opened ones, and of tasks that are named for a cause.
_CAUSES, _OPENED, _NAMED = 50, 3, 5
#: Maximum number of task names with rows, and of characters of a string of several lines.
_TASKS, _BLOCK = 500, 4_000
#: Maximum numbers in a terminal: of decisions and causes of failures, task names, and keys of tasks
#: that ran again.
_SHOWN, _SHOWN_NAMES, _SHOWN_RERUNS = 10, 30, 3


# Environment --------------------------------------------------------------------------------------

NOT_RECORDED = "not recorded"


@dataclass(frozen=True)
class Environment:
    """Facts about the machine and software of a run. None means not recorded."""

    #: Versions by program or package. Older runs record only scalable's version.
    versions: Mapping[str, str] = field(default_factory=dict)
    #: Operating system and architecture.
    platform: str = NOT_RECORDED
    #: Host of the process that made the record, with its CPUs and bytes of memory.
    host: str = NOT_RECORDED
    cpus: int | None = None
    memory: int | None = None
    #: Number of hosts with workers.
    hosts: int | None = None
    #: Digest of the manifest.
    manifest_lock: str = NOT_RECORDED
    #: Resolved manifest without the values of environment variables, empty if unreadable.
    manifest: str = ""


def environment_of(record: RunRecord) -> Environment:
    """Return the environment in a record."""
    run, machine = record.run, mapping(record.run.get("machine"))
    versions = {str(k): str(v) for k, v in mapping(run.get("versions")).items()}
    if version := text(run.get("version")):
        versions.setdefault("scalable", version)
    sizes = {key: number(machine.get(key)) for key in ("cpus", "memory")}
    hosts = {row["host"] for row in record.workers if text(row.get("host"))}
    return Environment(
        versions=versions,
        platform=text(machine.get("platform")) or NOT_RECORDED,
        host=text(run.get("host")) or NOT_RECORDED,
        **{key: None if size is None else int(size) for key, size in sizes.items()},
        hosts=len(hosts) or None,
        manifest_lock=record.manifest_lock or NOT_RECORDED,
        manifest=_shown_manifest(record.path),
    )


#: Largest size in bytes of a manifest that is shown.
LARGEST = 100_000
_HIDDEN = "(left out)"


def _shown_manifest(run: Path) -> str:
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
        shown = yaml.safe_dump(_without_secrets(value), sort_keys=False, allow_unicode=True)
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        return ""
    return str(shown) if isinstance(value, dict) else ""


def most_workers(manifest: str, target: str) -> int | None:
    """Return the limit of a target's workers in a resolved manifest, or None without any."""
    found = mapping(yaml.safe_load(manifest))
    most = mapping(mapping(found.get("targets")).get(target)).get("max_workers")
    # Managers start more workers on other targets.
    return most if type(most) is int and not found.get("managers") else None


def _without_secrets(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            str(key): _without_values(inner) if key == "env" else _without_secrets(inner)
            for key, inner in value.items()
        }
    if isinstance(value, list):
        return list(map(_without_secrets, value))
    return without_secrets(value) if isinstance(value, str) and "://" in value else value


def _without_values(env: Any) -> Any:
    return dict.fromkeys(map(str, env), _HIDDEN) if isinstance(env, dict) else _HIDDEN


# The report ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RunReport:
    """Report of one run with display methods."""

    summary: Summary
    #: Predictions of the plan next to the actual values.
    planned: Comparison
    #: Start and finish in epoch seconds.
    within: tuple[float, float]
    #: Tasks on workers, and the workers.
    spans: Sequence[Span] = ()
    present: Sequence[Presence] = ()
    pools: tuple[PoolUse, ...] = ()
    #: Longest chain of tasks that waited for each other, or None.
    chain: Chain | None = None
    environment: Environment = field(default_factory=Environment)
    #: Advice for the next run, as sentences.
    advice: tuple[str, ...] = ()

    @property
    def causes(self) -> tuple[FailureCause, ...]:
        """Most frequent causes of failures."""
        return self.summary.failures[:_CAUSES]

    @property
    def timeline(self) -> dict[str, Any]:
        """Workers over time, as plain values."""
        return make_timeline(self.spans, self.present, self.summary.scaling_changes, self.within)

    def to_dict(self) -> dict[str, Any]:
        """Return the report, without the timeline, as a versioned JSON value."""
        more = {
            "plan_and_actual": self.planned.to_dict(),
            "pools": [_pool(use) for use in self.pools],
            "causes": [_cause_of(cause) for cause in self.causes],
            "longest_chain": None if self.chain is None else asdict(self.chain),
            "environment": asdict(self.environment),
            "advice": list(self.advice),
        }
        return {"version": VERSION, "report": {**self.summary.to_dict(), **more}}

    def to_html(self) -> str:
        return render_page(document_of(self))

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the report as an HTML page, replacing an existing file, and return its path."""
        file = Path(path).absolute()
        write_whole(file, self.to_html())
        return file

    def _repr_html_(self) -> str:
        # A part of another page, which it cannot reach.
        return (
            '<iframe title="Report of a run" sandbox="allow-scripts" '
            'style="width:100%;height:44rem;border:0;resize:vertical" '
            f'srcdoc="{html.escape(self.to_html())}"></iframe>'
        )

    def compared_with(self, other: RunReport) -> dict[str, tuple[Any, Any]]:
        """Map names to pairs of this run's and another run's values. None means unknown."""
        one, two = map(_values_of, (self, other))
        rows = {name: (one.get(name), two.get(name)) for name in dict.fromkeys([*one, *two])}
        same = ("manifest", "version of ")
        return {n: p for n, p in rows.items() if not (n.startswith(same) and p[0] == p[1])}

    def __str__(self) -> str:
        return render_text(self)

    def __repr__(self) -> str:
        return f"<RunReport of {self.summary.run_id}: {self.summary.status}>"


def _values_of(report: RunReport) -> dict[str, Any]:
    """Return the values of a run that are compared with those of another one."""
    summary, environment = report.summary, report.environment
    values: dict[str, Any] = {
        "run": summary.run_id,
        "target": summary.target or None,
        "status": summary.status,
        "duration_s": summary.duration_s,
        "time_s": summary.time_s,
        "startup_s": summary.startup_s,
        "tasks": sum(summary.tasks.values()),
        "failed": summary.tasks.get("failed", 0),
        "manifest": environment.manifest_lock,
    }
    if summary.cost is not None:
        values[f"cost in {summary.cost.currency}"] = summary.cost.actual
    values |= {f"workers of {use.tag}": use.workers for use in report.pools}
    for name, task in summary.task_names.items():
        values[f"tasks of {name}"] = task.count
        lengths = task.quantiles.get("duration_s")
        values[f"median_s of {name}"] = None if lengths is None else lengths.q50
    return values | {f"version of {name}": text for name, text in environment.versions.items()}


def report_on(record: RunRecord) -> RunReport:
    """Return the report of a finished or running run."""
    calls = RecordedTasks(record.tasks, spans=True)
    summary = summarize(record, calls)
    moments = (number(row.get("timestamp")) for row in record.workers)
    until = max(0.0, calls.last_moment or 0.0, *(at for at in moments if at is not None))
    spans, present = calls.spans(until), presences(record.workers, until)
    began = epoch(summary.started_at)
    starts = [span.begin for span in spans] + [worker.begin for worker in present]
    first = min(starts if began is None else [began, *starts], default=until)
    within = (first, max(first, until))
    pools = pool_uses(record, calls, spans, present, within, summary)
    chain = calls.longest_chain()
    environment = environment_of(record)
    most = most_workers(environment.manifest, summary.target)
    return RunReport(
        summary=summary,
        planned=compare_with_plan(record.plan, summary, pools),
        within=within,
        spans=spans,
        present=present,
        pools=pools,
        chain=chain,
        environment=environment,
        advice=advise(pools, spans, present, chain, most),
    )


def compare(record: RunRecord) -> Comparison:
    """Return the comparison of a run with its plan, or raise RunError while it is running."""
    if record.status == "running":
        raise RunError(
            f"run {record.path.name} is still running", hint="wait until it has finished"
        )
    return report_on(record).planned


def _pool(use: PoolUse) -> dict[str, Any]:
    left_out = ("connected", "busy", "queued", "numbers")
    return {k: v for k, v in asdict(use).items() if k not in left_out} | {"share": use.share}


# What a report shows, on its page and in a terminal -----------------------------------------------

_NOT_CLOSED = {
    "interrupted": "its process stopped without closing the run; the record is incomplete",
    "running": "the record is incomplete",
}


def said_status(summary: Summary) -> str:
    """Return the status of a run with remarks."""
    failed = summary.tasks.get("failed", 0)
    status = fitted(summary.status, WIDTH // 2)
    if summary.status == "completed" and failed:
        status += f" with {counted(failed, 'failure')}"
    remarks = []
    if summary.status in _NOT_CLOSED:
        remarks.append(_NOT_CLOSED[summary.status])
    if summary.exit_code:
        remarks.append(f"exit code {summary.exit_code}")
    return status + (f" ({'; '.join(remarks)})" if remarks else "")


def said_moment(text: str | None) -> str:
    """Return a recorded time in a form such as ``2026-01-01 00:00:00 UTC``."""
    try:
        return f"{datetime.fromisoformat(text or ''):%Y-%m-%d %H:%M:%S %Z}".rstrip()
    except ValueError:
        return "not known"


def said_time(summary: Summary) -> str:
    """Return the time of a run's tasks, as plans predict it, its start-up, and its session."""
    session = "not known"
    if summary.duration_s is not None:
        session = format_duration(summary.duration_s)
        session += "" if summary.ended_at else " up to the last record"
    if summary.time_s is None or summary.startup_s is None:
        return f"no task finished (session {session})"
    time, startup = (format_duration(value) for value in (summary.time_s, summary.startup_s))
    return f"{time} (start-up {startup}, session {session})"


def said_cost(cost: CostSummary) -> str:
    """Return the actual cost of a run with its parts, the planned cost, and the budget."""
    share = round(100 * cost.idle / cost.actual) if cost.actual else 0
    planned = "not planned" if cost.planned is None else f"planned {money(cost.planned)}"
    if cost.planned_interval is not None:
        planned += ", {} to {}".format(*map(money, cost.planned_interval))
    budget = "" if cost.budget is None else f"; budget {money(cost.budget)}"
    parts = dict(cost.by_manager) if len(cost.by_manager) > 1 else {}
    parts |= {"scheduler": cost.scheduler} if cost.scheduler else {}
    of = ", ".join(f"{one_line(name)} {money(paid)}" for name, paid in parts.items())
    said = f"{money(cost.actual)} {cost.currency}, {money(cost.idle)} idle ({share} %)"
    return f"{said}; {planned}{budget}{f'; of it, {of}' if of else ''}"


def _facts(summary: Summary) -> Iterator[tuple[str, str]]:
    yield "Project", fitted(summary.project, LONGEST_NAME)
    provider = f" (provider {summary.provider})" if summary.provider else ""
    yield "Target", fitted(summary.target + provider, LONGEST_NAME)
    yield "Started", said_moment(summary.started_at)
    yield "Time", said_time(summary)


def _more_facts(summary: Summary) -> Iterator[tuple[str, str]]:
    if summary.cost is not None:
        yield "Cost", said_cost(summary.cost)
    if keys := summary.reruns:
        more = f" and {len(keys) - _SHOWN_RERUNS} more" if len(keys) > _SHOWN_RERUNS else ""
        shown = ", ".join(short_key(one_line(key)) for key in keys[:_SHOWN_RERUNS])
        reasons = reasons_in_words(summary.rerun_reasons)
        yield "Ran again", f"{counted(len(keys), 'task')} ({shown}{more}): {reasons}"


def _advice(report: RunReport) -> Iterator[Piece]:
    if report.advice:
        yield {"list": [fitted(sentence, LONGEST_NAME * 2) for sentence in report.advice]}
    else:
        yield {
            "text": "None: nothing in the record suggests other numbers of workers or another "
            "amount of memory."
        }
    if report.chain is not None:
        names = ", ".join(f"{name} ({count})" for name, count in report.chain.names[:10])
        more = " and others" if len(report.chain.names) > 10 else ""
        yield {
            "text": one_line(
                "Longest chain of tasks that waited for each other: "
                f"{counted(report.chain.tasks, 'task')}, "
                f"{format_duration(report.chain.seconds)}: {names}{more}."
            )
        }


def _cached(summary: Summary) -> Iterator[Piece]:
    if summary.remembered:
        yield {"title": f"Cached results: {cache_in_words(summary.remembered)}"}
        rows = [
            (each.task, each.count, each.reason, ", ".join(each.changed), each.nearest[:12])
            for each in summary.remembered.reasons
        ]
        headings = ("task", "ran", "reason", "parts that changed", "nearest result")
        yield from table(text_table(headings, rows, left=headings[2:], empty="all were hits"))


def _decisions(report: RunReport, most: int, left_out: Collection[str]) -> Iterator[Piece]:
    scaling, changes = report.summary.scaling, report.summary.scaling_changes
    events = ", ".join(f"{count} {name.replace('_', '-')}" for name, count in scaling.items())
    yield {"title": f"Scaling events: {events}"}
    if not changes:
        yield {"text": "The desired numbers of workers did not change."}
    made = decisions_of_run(
        (row for row in changes if row.get("source") not in left_out), report.within[0]
    )
    if made.rows:
        yield {"table": made.last(most)}
    if (more := len(made.rows) - most) > 0:
        yield {"text": f"{more} earlier decisions are in scaling.jsonl."}


def _pools(report: RunReport, display: str) -> Iterator[Piece]:
    yield from table(POOLS_OF_RUN.table(report.pools[:_POOLS], display))
    pools = report.summary.workers.items()
    lost = [
        one_line(f"Lost workers of {tag}: {reasons_in_words(pool.lost_reasons)}")
        for tag, pool in pools
        if pool.lost
    ]
    if lost:
        yield {"list": lost[:_POOLS]}


def _results(summary: Summary) -> Iterator[Piece]:
    facts = []
    for each in summary.artifacts[:_RESULTS]:
        size = number(each.get("bytes"))
        shown = "" if size is None else f" ({format_bytes(size)})"
        where = one_line(str(each.get("path") or each.get("uri") or "unknown location"))
        facts.append((fitted(each.get("name") or "unnamed", WIDTH // 2), where + shown))
    if facts:
        yield {"facts": facts, "whole": True}


# The page -----------------------------------------------------------------------------------------


def document_of(report: RunReport) -> dict[str, Any]:
    """Return what the page draws of a report."""
    summary, (first, last) = report.summary, report.within
    tasks = TASKS.table(task_rows(summary)[:_TASKS], "report")
    others = sum(cause.count for cause in summary.failures[_CAUSES:])
    workers = sum(pool.started for pool in summary.workers.values())
    facts = [*_facts(summary), *_more_facts(summary), ("Workers", counted(workers, "worker"))]
    if summary.remembered:
        facts.append(("Cached results", cache_in_words(summary.remembered)))
    return {
        "live": False,
        "name": f"Run {fitted(summary.run_id, LONGEST_NAME)}",
        "state": {"text": said_status(summary), "look": _look(summary)},
        "error": (summary.error or "")[:_BLOCK],
        "start": first,
        "at": last,
        "progress": progress(counts_of(summary.tasks), facts),
        "parts": {
            "plan": list(compared(report.planned, _TASKS)),
            "advice": list(_advice(report)),
            "pools": list(_pools(report, "report")),
            "tasks": [*table(tasks, filter=True), *_cached(summary)],
            "decisions": list(_decisions(report, _DECISIONS, ())),
            "environment": list(_environment(report)),
        },
        "timeline": report.timeline,
        "charts": charts_of(report.pools, last - first),
        "failures": [_failure(place, cause) for place, cause in enumerate(report.causes)],
        "other_failures": f"And {others} failures with other causes, in failures.jsonl."
        if others
        else "",
    }


def _look(summary: Summary) -> str:
    if summary.status == "failed":
        return "bad"
    whole = summary.status == "completed" and not summary.failures
    return "good" if whole and not summary.tasks.get("failed") else "warn"


def _environment(report: RunReport) -> Iterator[Piece]:
    summary, there = report.summary, report.environment
    machine = [there.host]
    machine += [f"{there.cpus} CPUs"] if there.cpus else []
    machine += [format_bytes(there.memory)] if there.memory else []
    facts = [
        *there.versions.items(),
        ("platform", there.platform),
        ("host", ", ".join(machine)),
        ("hosts of workers", str(there.hosts or "not recorded")),
        ("manifest digest", there.manifest_lock),
        ("record", summary.path),
    ]
    yield {
        "facts": [
            [fitted(name, LONGEST_NAME), fitted(value, 4 * LONGEST_NAME)] for name, value in facts
        ]
    }
    if there.manifest:
        title = "Manifest, resolved; values of environment variables are left out"
        yield {"details": title, "pieces": [{"block": there.manifest[:_BLOCK]}]}
    if results := list(_results(summary)):
        yield {"title": "Results"}
        yield from results
    if summary.malformed_lines:
        yield {"text": f"{summary.malformed_lines} lines of the record cannot be read."}


def _cause_of(cause: FailureCause) -> dict[str, Any]:
    """Return a cause with its most detailed failure as plain values."""
    example, failures = cause.failures[0], cause.failures
    named = {
        "tasks": [failed.task_id for failed in failures],
        "workers": [failed.details.worker for failed in failures],
        "names": cause.task_names,
    }
    told = vars(example.details).items()
    return {
        "failure_class": cause.failure_class,
        "message": example.message[:_BLOCK],
        "frame": cause.frame or "",
        "count": cause.count,
        **{k: list(dict.fromkeys(filter(None, each)))[:_NAMED] for k, each in named.items()},
        "traceback": (example.traceback or "")[-_BLOCK:],
        "details": {
            key: str(value)[-_BLOCK:]
            for key, value in told
            if value not in (None, "", 1) and key not in ("frame", "worker", "traceback")
        },
    }


def _failure(place: int, cause: FailureCause) -> dict[str, Any]:
    told = _cause_of(cause)
    names, workers = (", ".join(told[key]) for key in ("names", "workers"))
    more = {"task_name": names, "frame": cause.frame, "worker": workers}
    more |= {"tag": cause.failures[0].tag, "traceback": told["traceback"]}
    tasks = [[fitted(key, LONGEST_NAME), None, None] for key in told["tasks"]]
    shown = failure(told | {"details": told["details"] | more}, str(place))
    return {**shown, "tasks": tasks, "open": place < _OPENED}


# The text -----------------------------------------------------------------------------------------


def render_text(report: RunReport) -> str:
    """Return the report as plain text without colour. Only paths may exceed 100 columns."""
    summary = report.summary
    facts = [("Status", said_status(summary))]
    facts += [("Error", first_line(summary.error))] if summary.error else []
    tasks = counts_in_words(parts_of(counts_of(summary.tasks)))
    more = list(_more_facts(summary))
    record = f"\nRecord: {one_line(summary.path)}"
    if summary.malformed_lines:
        record = f"\nUnreadable lines of the record: {summary.malformed_lines}{record}"
    results = list(_results(summary))
    pieces: list[Piece] = [
        {"block": f"Run {one_line(summary.run_id)}"},
        {"facts": [*facts, *_facts(summary), ("Tasks", tasks)], "wide": 10},
        *([{"facts": more}] if more else []),
        *_tables(summary),
        *_cached_in_words(summary),
        {"title": "Workers"},
        *_pools(report, "workers"),
        *_decisions(report, _SHOWN, ("plan",)),  # these are those at the start
        *_failures(summary),
        *([{"title": "Advice"}, *_advice(report)] if report.advice or report.chain else []),
        *([{"title": "Results"}, *results] if results else []),
        {"block": record},
    ]
    return text_of(pieces)


#: Title of a table, its display, and what is said without any measurement.
_MEASURED = (
    ("Duration", "duration_s", "not measured"),
    ("Time in the queue", "queued_s", "none"),
    ("Peak memory", "peak_memory", "not measured"),
)


def _tables(summary: Summary) -> Iterator[Piece]:
    rows = task_rows(summary)
    for title, display, nothing in _MEASURED if rows else ():
        made = TASKS.table(rows[:_SHOWN_NAMES], display)
        if len(made.columns) == 1:
            yield {"title": f"{title}: {nothing}"}
            continue
        yield from ({"title": title}, {"table": made})
        if display == "duration_s" and (more := len(rows) - _SHOWN_NAMES) > 0:
            yield {"text": f"and {more} more task names (see the JSON report)"}


def _cached_in_words(summary: Summary) -> Iterator[Piece]:
    totals = summary.remembered
    if not totals:
        return
    yield {"title": f"Cached results: {cache_in_words(totals)}"}
    cached = sorted((-row.task.counts.cached, name) for name, row in summary.task_names.items())
    hits = [f"{one_line(name)} {-count}" for count, name in cached[:_SHOWN_NAMES] if count]
    lines = [f"  hits: {', '.join(hits)}"] if hits else []
    for each in totals.reasons[:_SHOWN]:
        closest = f" (nearest: {each.nearest[:12]})" if each.nearest else ""
        lines.append(f"  ran: {each.count} x {each.task}: {each.reason}{closest}")
    if (more := len(totals.reasons) - _SHOWN) > 0:
        lines.append(f"  and {more} more reasons (see the JSON report)")
    yield {"block": "\n".join(map(cut, lines))}


def _failures(summary: Summary) -> Iterator[Piece]:
    if not summary.failures:
        return
    count = sum(cause.count for cause in summary.failures)
    yield {"title": f"Failures: {count}"}
    lines = []
    for cause in summary.failures[:_SHOWN]:
        example = cause.failures[0]
        lines.append(f"  {cause.failure_class} ({cause.count}): {first_line(example.message)}")
        lines += [f"    at {cause.frame}"] if cause.frame else []
        lines += [f"    with {given}"] if (given := example.details.arguments) else []
    if (more := len(summary.failures) - _SHOWN) > 0:
        lines.append(f"  and {counted(more, 'more cause')}")
    if summary.tasks.get("failed", 0) > count:
        lines.append("  Further tasks failed only because they need the result of one of these.")
    lines.append("  (scalable report --failed lists them)")
    yield {"block": "\n".join(map(cut, lines))}


# The file -----------------------------------------------------------------------------------------


def render_page(document: Mapping[str, Any]) -> str:
    """Return the page with the data that it draws."""
    style, script = page_file("page.css"), page_file("page.js")
    policy = (
        f"default-src 'none'; style-src {_digest(style)}; script-src {_digest(script)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    head = (
        f'<meta http-equiv="Content-Security-Policy" content="{html.escape(policy)}">\n'
        f"<style>{style}</style>\n"
        f'<script type="application/json" id="data">{_data(document)}</script>'
    )
    name = html.escape(one_line(document["name"])).encode("ascii", "xmlcharrefreplace").decode()
    parts = {
        "<title>scalable</title>": f"<title>{name}</title>",
        '<link rel="stylesheet" href="page.css">': head,
        '<script type="module" src="page.js"></script>': f'<script type="module">{script}</script>',
    }
    page = page_file("page.html")
    for written, own in parts.items():
        before, _, after = page.partition(written)
        page = f"{before}{own}{after}"
    return page


def _data(document: Mapping[str, Any]) -> str:
    """Return JSON of printable ASCII that cannot end its element or open another one."""
    written = to_json(document)
    return written.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _digest(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
