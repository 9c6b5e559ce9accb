"""Comparison of two runs. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from scalable.report.environment import environment_of
from scalable.report.spans import last_moment, most_at_once, presences
from scalable.report.table import on_one_line, shorten, table
from scalable.telemetry import Calls, RunRecord, Summary, summary_of
from scalable.units import format_amount, format_duration

#: Minimum number of tasks of a name in both runs before a difference is more than noise.
LEAST_CALLS = 10
#: Medians that differ by less than this share are equal.
SAME = 0.1
#: Maximum number of task names in the table.
_SHOWN = 30
_MISSING = "-"

Pair = tuple[Any, Any]


@dataclass(frozen=True)
class TaskPair:
    """Tasks of one name in two runs, where each pair is (first run, second run)."""

    calls: Pair
    failed: Pair
    #: Quantiles of the running time, None where not measured.
    median_s: Pair
    q95_s: Pair
    #: ``faster``, ``slower`` or ``same`` by the medians, or ``noise`` with too few measured tasks.
    verdict: str


@dataclass(frozen=True)
class TwoRuns:
    """Comparison of two runs, where each pair is (first, second) and None means unknown."""

    run_ids: Pair
    statuses: Pair
    duration_s: Pair
    cost: Pair
    currency: str
    calls: Pair
    failed: Pair
    #: Maximum number of workers at one time, by tag.
    workers: Mapping[str, Pair]
    tasks: Mapping[str, TaskPair]
    #: Other differing values by name, such as the manifest's digest and versions.
    differences: Mapping[str, Pair]

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values, where each pair becomes ``{"first": ..., "second": ...}``."""
        plain: dict[str, Any] = {}
        for key, value in vars(self).items():
            if key == "tasks":
                plain[key] = {
                    name: {k: _named(v) for k, v in vars(task).items()}
                    for name, task in self.tasks.items()
                }
            elif isinstance(value, Mapping):
                plain[key] = {name: _named(pair) for name, pair in value.items()}
            else:
                plain[key] = _named(value)
        return {"version": 1, "comparison": plain}


def compare_runs(first: RunRecord, second: RunRecord) -> TwoRuns:
    """Return the comparison of two runs."""
    records = (first, second)
    calls = [Calls(record.tasks) for record in records]
    one, other = summaries = (summary_of(first, calls[0]), summary_of(second, calls[1]))
    workers = [
        _workers(record, calls_of.last_moment or 0.0)
        for record, calls_of in zip(records, calls, strict=True)
    ]
    names = list(dict.fromkeys([*one.task_names, *other.task_names]))
    currency = next((s.cost.currency for s in summaries if s.cost is not None), "")
    return TwoRuns(
        run_ids=(one.run_id, other.run_id),
        statuses=(one.status, other.status),
        duration_s=(one.duration_s, other.duration_s),
        cost=_both(summaries, lambda s: None if s.cost is None else s.cost.actual),
        currency=currency,
        calls=_both(summaries, lambda s: sum(s.tasks.values())),
        failed=_both(summaries, lambda s: s.tasks.get("failed", 0)),
        workers={
            tag: (workers[0].get(tag, 0), workers[1].get(tag, 0))
            for tag in dict.fromkeys([*workers[0], *workers[1]])
        },
        tasks={name: _task(one, other, name) for name in names},
        differences=_differences(first, second),
    )


def render_two_runs(compared: TwoRuns) -> str:
    """Return a comparison as plain text with a final newline."""
    price = partial(format_amount, unit=compared.currency)
    rows = [
        ("status", *compared.statuses, ""),
        ("duration", *_shown(compared.duration_s, format_duration)),
        ("calls", *_shown(compared.calls, str)),
        ("failed", *_shown(compared.failed, str)),
    ]
    if compared.cost != (None, None):
        rows.append((f"cost, {compared.currency}", *_shown(compared.cost, price)))
    rows += [(f"workers of {tag}", *_shown(pair, str)) for tag, pair in compared.workers.items()]
    lines = [
        f"First:  {on_one_line(compared.run_ids[0])}",
        f"Second: {on_one_line(compared.run_ids[1])}",
        "",
        *table(("", "first", "second", "ratio"), rows),
    ]
    tasks = list(compared.tasks.items())
    if tasks:
        header = ("task", "calls", "failed", "median", "95%", "second is")
        shown = [(name, *_task_row(task)) for name, task in tasks[:_SHOWN]]
        lines += ["", "Tasks (first / second):", *table(header, shown)]
        if len(tasks) > _SHOWN:
            lines.append(f"  and {len(tasks) - _SHOWN} more task names (see the JSON form)")
        if any(task.verdict == "noise" for _, task in tasks):
            lines.append(
                f"  noise: fewer than {LEAST_CALLS} calls were measured in one of the runs; "
                "the difference tells nothing"
            )
    if compared.differences:
        lines += ["", "Also different:"]
        lines += [
            shorten(f"  {on_one_line(name)}: {_text(one)} / {_text(other)}", 100)
            for name, (one, other) in compared.differences.items()
        ]
    else:
        lines += ["", "Manifest and versions are the same, as far as they are recorded."]
    return "\n".join(lines) + "\n"


def _task(one: Summary, other: Summary, name: str) -> TaskPair:
    tasks = (one.task_names.get(name), other.task_names.get(name))
    spreads = [None if task is None else task.duration_s for task in tasks]
    medians = _both(spreads, lambda s: None if s is None else s.q50)
    calls = _both(tasks, lambda t: 0 if t is None else t.count)
    return TaskPair(
        calls=calls,
        failed=_both(tasks, lambda t: 0 if t is None else t.failed),
        median_s=medians,
        q95_s=_both(spreads, lambda s: None if s is None else s.q95),
        verdict=_verdict(medians, calls),
    )


def _verdict(medians: Pair, calls: Pair) -> str:
    before, after = medians
    if before is None or after is None or min(calls) < LEAST_CALLS:
        return "noise"
    if abs(after - before) <= SAME * before:
        return "same"
    return "faster" if after < before else "slower"


def _differences(first: RunRecord, second: RunRecord) -> dict[str, Pair]:
    one, other = environment_of(first), environment_of(second)
    found: dict[str, Pair] = {
        "project": (first.run.get("project"), second.run.get("project")),
        "target": (first.run.get("target"), second.run.get("target")),
        "manifest.lock": (one.manifest_lock, other.manifest_lock),
        "platform": (one.platform, other.platform),
    }
    for name in dict.fromkeys([*one.versions, *other.versions]):
        found[f"version of {name}"] = (one.versions.get(name), other.versions.get(name))
    return {name: pair for name, pair in found.items() if pair[0] != pair[1]}


def _workers(record: RunRecord, last: float) -> dict[str, int]:
    present: dict[str, list[tuple[float, float]]] = {}
    for worker in presences(record.workers, last_moment(record, last)):
        present.setdefault(worker.tag, []).append((worker.begin, worker.end))
    return {tag: most_at_once(intervals) for tag, intervals in present.items()}


def _both(values: Any, of: Any) -> Pair:
    one, other = values
    return of(one), of(other)


def _named(value: Any) -> Any:
    if isinstance(value, tuple):
        return {"first": value[0], "second": value[1]}
    return value


def _shown(pair: Pair, show: Any) -> tuple[str, str, str]:
    one, other = pair
    ratio = f"{other / one:.2f}" if one and other is not None else _MISSING
    return _text(one, show), _text(other, show), ratio


def _text(value: Any, show: Any = str) -> str:
    return _MISSING if value is None else on_one_line(show(value))


def _task_row(task: TaskPair) -> tuple[str, ...]:
    def both(pair: Pair, show: Any) -> str:
        return f"{_text(pair[0], show)} / {_text(pair[1], show)}"

    return (
        both(task.calls, str),
        both(task.failed, str),
        both(task.median_s, format_duration),
        both(task.q95_s, format_duration),
        task.verdict,
    )
