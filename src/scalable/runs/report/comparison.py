"""Comparison of a plan's predictions with the record of its run. Does no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from scalable.errors import RunError
from scalable.model import MemoryAdvice
from scalable.model.plan import confidence_in_words
from scalable.planning import judge_memory
from scalable.quantiles import quantile
from scalable.runs import RecordedTasks, RunRecord, Summary, TaskNameSummary, WorkSpan, summary_of
from scalable.runs.report.advice import said_memory
from scalable.runs.report.histograms import TaskValues
from scalable.runs.report.spans import (
    Presence,
    Spans,
    last_moment,
    mapping,
    most_at_once,
    number,
    presences,
)
from scalable.runs.report.table import on_one_line, table
from scalable.runs.report.usage import Peaks, reserved_memory
from scalable.runs.streams import Row, in_parts
from scalable.units import format_amount, format_bytes, format_duration

#: A prediction counts as correct if actual value / predicted value is in this range.
_BAND = (0.8, 1.25)
_MISSING = "-"

Pair = tuple[float | None, float | None]


@dataclass(frozen=True)
class TaskComparison:
    """Pairs (predicted, actual) for the tasks of one name. None means unknown."""

    calls: Pair
    mean_s: Pair
    #: 80 % quantile of the running time of a task.
    q80_s: Pair
    #: 95 % quantile of the peak memory of a task in bytes.
    memory: Pair


@dataclass(frozen=True)
class Comparison:
    """Comparison of a plan with its run as pairs (predicted, actual)."""

    run_id: str
    status: str
    objective: str | None
    policy: str | None
    #: Seconds until the last task finished, as in :meth:`scalable.runs.WorkSpan.seconds`.
    time_s: Pair
    #: True if the actual time is 0.8 to 1.25 times the predicted one. None if one is unknown.
    within: bool | None
    #: Predicted probability that ``within`` is True.
    confidence: float | None
    #: Connection time of all workers. The prediction assumes that all stay until the run finishes.
    worker_seconds: Pair
    #: None without prices. The actual cost is that counted during the run, or else from
    #: worker-seconds.
    cost: Pair
    currency: str
    #: By tag: planned number of workers, and maximum number at one time.
    workers: Mapping[str, Pair]
    tasks: Mapping[str, TaskComparison]
    #: Advice for components whose reserved memory is much more or less than the used memory.
    memory_advice: Sequence[MemoryAdvice]

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values, with the keys ``predicted`` and ``actual`` for each pair."""
        plain = asdict(self)
        for key in ("time_s", "worker_seconds", "cost"):
            plain[key] = _named(plain[key])
        plain["workers"] = {tag: _named(pair) for tag, pair in self.workers.items()}
        plain["tasks"] = {
            name: {key: _named(pair) for key, pair in asdict(task).items()}
            for name, task in self.tasks.items()
        }
        return plain


def compare(record: RunRecord) -> Comparison:
    """Return the comparison of a run with its plan, or raise RunError while it is running."""
    if record.status == "running":
        raise RunError(
            f"run {record.path.name} is still running", hint="wait until it has finished"
        )
    read = ReadCalls(record.tasks)
    present = presences(record.workers, last_moment(record, read.last_moment))
    return compare_with_plan(record, read, summary_of(record, read.calls), present)


def compare_with_plan(
    record: RunRecord, read: ReadCalls, summary: Summary, present: Iterable[Presence]
) -> Comparison:
    """Return the comparison of a finished or running run with its plan."""
    plan = record.plan
    predicted = number(plan.get("predicted_time_s"))
    actual = read.work.seconds(record.workers)
    wanted = mapping(mapping(plan.get("scale_plan")).get("workers_by_tag"))
    connected: dict[str, list[tuple[float, float]]] = {}
    for worker in present:
        connected.setdefault(worker.tag, []).append((worker.begin, worker.end))
    seconds = {tag: sum(end - begin for begin, end in spans) for tag, spans in connected.items()}
    estimate = mapping(plan.get("cost_estimate"))
    hourly = {
        tag: price / count
        for tag, value in mapping(estimate.get("by_tag")).items()
        if (price := number(value)) is not None and (count := number(wanted.get(tag)))
    }
    planned_workers = {tag: number(count) or 0.0 for tag, count in wanted.items()}
    held = None if predicted is None else predicted * sum(planned_workers.values())
    paid = None if predicted is None else _paid(planned_workers, hourly, predicted)
    # A plan without a predicted time never showed its guesses to the user.
    expected = {} if predicted is None else mapping(plan.get("tasks"))
    names = [*expected, *(name for name in summary.task_names if name not in expected)]
    return Comparison(
        run_id=summary.run_id,
        status=record.status,
        objective=plan.get("objective"),
        policy=plan.get("policy"),
        time_s=(predicted, actual),
        within=None
        if not predicted or actual is None
        else _BAND[0] <= actual / predicted <= _BAND[1],
        confidence=number(plan.get("confidence")),
        worker_seconds=(held, sum(seconds.values()) if connected else None),
        cost=(paid, _actual_cost(summary, seconds, hourly)),
        currency=str(estimate.get("currency") or (summary.cost.currency if summary.cost else "")),
        workers={
            tag: (number(wanted.get(tag)), float(most_at_once(connected.get(tag, ()))))
            for tag in [*wanted, *(tag for tag in connected if tag not in wanted)]
        },
        tasks={
            name: _task(mapping(expected.get(name)), summary.task_names.get(name)) for name in names
        },
        memory_advice=tuple(_advice(record, read.peaks)),
    )


def render_comparison(comparison: Comparison) -> str:
    """Return a comparison as plain text with a final newline."""
    held = {True: "yes", False: "no", None: "not known"}[comparison.within]
    confidence = comparison.confidence
    said = "" if confidence is None else f" (confidence was {confidence_in_words(confidence)})"
    rows = [
        ("time", *_compared_cells(comparison.time_s, format_duration)),
        ("worker-seconds", *_compared_cells(comparison.worker_seconds, "{:.0f}".format)),
    ]
    if comparison.cost != (None, None):
        price = partial(format_amount, unit=comparison.currency)
        rows.append((f"cost, {comparison.currency}", *_compared_cells(comparison.cost, price)))
    rows += [
        (f"workers of {tag}", *_compared_cells(pair, "{:.0f}".format))
        for tag, pair in comparison.workers.items()
    ]
    lines = [
        f"Run {on_one_line(comparison.run_id)}: {comparison.status}",
        (
            f"Plan:   {comparison.objective or 'the counts of the manifest'}"
            f"{f', policy {comparison.policy}' if comparison.policy else ''}"
        ),
        f"Within {_BAND[0]:g} to {_BAND[1]:g} times the predicted time: {held}{said}",
        "",
        *table(("", "predicted", "actual", "ratio"), rows),
    ]
    for title, key, show in (
        ("Tasks:", "calls", "{:.0f}".format),
        ("Mean time of a task:", "mean_s", format_duration),
        ("80 % of tasks within:", "q80_s", format_duration),
        ("Peak memory of 95 % of tasks:", "memory", format_bytes),
    ):
        pairs = {name: getattr(task, key) for name, task in comparison.tasks.items()}
        if any(pair != (None, None) for pair in pairs.values()):
            shown = [(name, *_compared_cells(pair, show)) for name, pair in pairs.items()]
            lines += ["", title, *table(("task", "predicted", "actual", "ratio"), shown)]
    for advice in comparison.memory_advice:
        lines += ["", said_memory(advice)]
    return "\n".join(lines) + "\n"


def _compared_cells(pair: Pair, show: Any) -> tuple[str, str, str]:
    predicted, actual = pair
    texts = [_MISSING if value is None else str(show(value)) for value in pair]
    ratio = f"{actual / predicted:.2f}" if predicted and actual is not None else _MISSING
    return texts[0], texts[1], ratio


def _named(pair: Pair) -> dict[str, float | None]:
    return {"predicted": pair[0], "actual": pair[1]}


def _task(expected: Mapping[str, Any], actual: TaskNameSummary | None) -> TaskComparison:
    spread = None if actual is None else actual.duration_s
    memory = None if actual is None else actual.peak_memory
    return TaskComparison(
        calls=(number(expected.get("calls")), None if actual is None else float(actual.count)),
        mean_s=(number(expected.get("mean_s")), None if spread is None else spread.mean),
        q80_s=(number(expected.get("q80_s")), None if spread is None else spread.q80),
        memory=(number(expected.get("memory")), None if memory is None else memory.q95),
    )


def _paid(seconds: Mapping[str, float], hourly: Mapping[str, float], factor: float) -> float | None:
    """Return the cost of ``seconds``, multiplied by ``factor``, or None without prices."""
    if not hourly:
        return None
    return sum(hourly.get(tag, 0.0) * value * factor / 3600 for tag, value in seconds.items())


def _actual_cost(
    summary: Summary, seconds: Mapping[str, float], hourly: Mapping[str, float]
) -> float | None:
    if summary.cost is not None:
        return summary.cost.actual
    return _paid(seconds, hourly, 1.0) if seconds else None


def _advice(record: RunRecord, found: Peaks) -> Iterator[MemoryAdvice]:
    reserved = reserved_memory(record.plan)
    for tag, peaks in found.by_tag.items():
        if tag in reserved:
            q95 = int(quantile(sorted(peaks), 0.95))
            advice = judge_memory(tag, reserved[tag], q95, len(peaks))
            if advice is not None:
                yield advice


# Rows about the tasks of a run, read once for all parts of a report. No I/O -----------------------


class ReadCalls:
    """Values from a run's task rows, for several parts of a report. Decodes the rows only once."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self.calls, self.spans, self.values = RecordedTasks(), Spans(), TaskValues()
        self.peaks, self.work = Peaks(), WorkSpan()
        self.in_graph = False
        for some in in_parts(rows):
            for reader in (self.calls, self.spans, self.values, self.peaks, self.work):
                reader.add(some)
            self.in_graph = self.in_graph or any("after" in row for row in some)

    @property
    def last_moment(self) -> float:
        """Time of the last row in epoch seconds, or 0 without rows."""
        return max(0.0, self.calls.last_moment or 0.0)
