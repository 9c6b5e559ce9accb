"""Comparison of a plan's predictions with the record of its run. Does no I/O."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from scalable.harmless import one_line
from scalable.model import MemoryAdvice
from scalable.model.codec import Noun
from scalable.model.costs import CURRENCY
from scalable.model.plan import confidence_in_words
from scalable.planning.notices import memory_in_words
from scalable.runs.report.usage import LONGEST_NAME, PoolUse, memory_advice
from scalable.runs.streams import mapping, number
from scalable.runs.summary import Summary, planned_cost
from scalable.units import format_amount, format_bytes, format_duration
from scalable.views.columns import TaskRow
from scalable.views.page import Piece, text_of
from scalable.views.tables import Table, fitted, text_table

#: A prediction counts as correct if actual value / predicted value is in this range.
_BAND = (0.8, 1.25)


class Pair(NamedTuple):
    """Two values, of which None is unknown."""

    predicted: float | None
    actual: float | None


@dataclass(frozen=True)
class Comparison(Noun):
    """Comparison of a plan with its run."""

    run_id: str
    status: str
    objective: str | None
    policy: str | None
    #: Seconds from the end of the start-up until the last task finished, and of the start-up. See
    #: :meth:`.RecordedTasks.work_parts`.
    time_s: Pair
    startup_s: Pair
    #: True if the actual time of a completed run is 0.8 to 1.25 times the predicted one.
    within: bool | None
    #: Predicted probability that ``within`` is True.
    confidence: float | None
    #: Connection time of all workers. The prediction assumes that all stay until the run finishes.
    worker_seconds: Pair
    #: None without prices.
    cost: Pair
    currency: str
    #: By tag: planned number of workers, and maximum number at one time.
    workers: Mapping[str, Pair]
    #: By task name: ``tasks``, ``mean_s``, the 80 % quantile ``q80_s`` of the running time, and the
    #: 95 % quantile ``memory`` of the peak memory in bytes.
    tasks: Mapping[str, Mapping[str, Pair]]
    #: Advice for components whose reserved memory is much more or less than the used memory.
    memory_advice: tuple[MemoryAdvice, ...]


def compare_with_plan(
    plan: Mapping[str, Any], summary: Summary, pools: Sequence[PoolUse]
) -> Comparison:
    """Return the comparison of a finished or running run with its plan."""
    predicted = number(plan.get("predicted_time_s"))
    startup = None if predicted is None else number(plan.get("startup_s"))
    time = None if predicted is None else max(0.0, predicted - (startup or 0.0))
    actual = summary.time_s if summary.status == "completed" else None
    ratio = actual / time if time and actual is not None else None
    wanted = mapping(mapping(plan.get("scale_plan")).get("workers_by_tag"))
    planned_workers = sum(number(count) or 0.0 for count in wanted.values())
    most = {use.tag: float(use.workers) for use in pools}
    # A plan without a predicted time never showed its guesses to the user.
    expected = {} if predicted is None else mapping(plan.get("tasks"))
    return Comparison(
        run_id=summary.run_id,
        status=summary.status,
        objective=plan.get("objective"),
        policy=plan.get("policy"),
        time_s=Pair(time, summary.time_s),
        startup_s=Pair(startup, summary.startup_s),
        within=None if ratio is None else _BAND[0] <= ratio <= _BAND[1],
        confidence=number(plan.get("confidence")),
        worker_seconds=Pair(
            None if predicted is None else predicted * planned_workers,
            sum(use.connected_s for use in pools) if pools else None,
        ),
        cost=Pair(planned_cost(plan)[0], None if summary.cost is None else summary.cost.actual),
        currency=CURRENCY,
        workers={
            tag: Pair(number(wanted.get(tag)), most.get(tag, 0.0))
            for tag in dict.fromkeys([*wanted, *most])
        },
        tasks={
            name: _task(mapping(expected.get(name)), summary.task_names.get(name))
            for name in dict.fromkeys([*expected, *summary.task_names])
        },
        memory_advice=memory_advice(pools),
    )


#: Title of a table, key of the tasks' pairs, and format.
_OF_TASKS = (
    ("Tasks", "tasks", "{:.0f}".format),
    ("Mean time of a task", "mean_s", format_duration),
    ("80 % of tasks within", "q80_s", format_duration),
    ("Peak memory of 95 % of tasks", "memory", format_bytes),
)


def compared(comparison: Comparison, most: int | None = None) -> Iterator[Piece]:
    """Yield what was planned, how good the prediction was, and tables with ``most`` rows."""
    plan = comparison.objective or "the counts of the manifest"
    policy = f", policy {comparison.policy}" if comparison.policy else ""
    held = {True: "yes", False: "no", None: "not known"}[comparison.within]
    confidence = comparison.confidence
    said = "" if confidence is None else f" (confidence was {confidence_in_words(confidence)})"
    within = f"Within {_BAND[0]:g} to {_BAND[1]:g} times the predicted time"
    yield {"text": one_line(f"Plan: {plan}{policy}")}
    yield {"text": f"{within}: {held}{said}"}
    price = partial(format_amount, unit=comparison.currency)
    rows = [
        ("time", comparison.time_s, format_duration),
        ("start-up", comparison.startup_s, format_duration),
        ("worker-seconds", comparison.worker_seconds, "{:.0f}".format),
        (f"cost, {comparison.currency}", comparison.cost, price),
        *((f"workers of {tag}", p, "{:.0f}".format) for tag, p in comparison.workers.items()),
    ]
    known = [row for row in rows if row[0] == "time" or row[1] != (None, None)]
    yield {"table": _pairs(("", "predicted", "actual"), known[:most])}
    for title, key, show in _OF_TASKS:
        pairs = [(name, task[key], show) for name, task in comparison.tasks.items()]
        if any(pair != (None, None) for _, pair, _ in pairs):
            yield {"title": title}
            yield {"table": _pairs(("task", "predicted", "actual"), pairs[:most])}


def render_comparison(comparison: Comparison) -> str:
    """Return a comparison as plain text with a final newline."""
    advice = [memory_in_words(each) for each in comparison.memory_advice]
    pieces: list[Piece] = [
        {"block": f"Run {one_line(comparison.run_id)}: {one_line(comparison.status)}"},
        *compared(comparison),
    ]
    if advice:
        pieces += [{"title": "Advice"}, {"list": advice}]
    return text_of(pieces)


_Rows = Sequence[tuple[str, tuple[Any, Any], Any]]


def _pairs(headings: tuple[str, ...], rows: _Rows) -> Table:
    """Return names with two values and their ratio as a table."""
    named = [(fitted(name, LONGEST_NAME), *_cells(*rest)) for name, *rest in rows]
    return text_table((*headings, "ratio"), named)


def _cells(pair: tuple[Any, Any], show: Any) -> tuple[str, ...]:
    texts = ["-" if value is None else fitted(show(value), _LONGEST) for value in pair]
    one, other = pair
    numbers = all(isinstance(value, int | float) for value in pair)
    return (*texts, f"{other / one:.2f}" if numbers and one else "-")


def _task(expected: Mapping[str, Any], actual: TaskRow | None) -> dict[str, Pair]:
    ran = None if actual is None else float(actual.task.counts.done + actual.task.counts.failed)
    spread = None if actual is None else actual.quantiles.get("duration_s")
    memory = None if actual is None else actual.quantiles.get("peak_memory")
    found = {
        "tasks": ("calls", ran),
        "mean_s": ("mean_s", None if spread is None else spread.mean),
        "q80_s": ("q80_s", None if spread is None else spread.q80),
        "memory": ("memory", None if memory is None else memory.q95),
    }
    return {key: Pair(number(expected.get(of)), value) for key, (of, value) in found.items()}


# Two runs -----------------------------------------------------------------------------------------

#: Maximum number of rows of the table, and of characters of a text in it.
_ROWS, _LONGEST = 100, 24


def render_two_runs(rows: Mapping[str, tuple[Any, Any]]) -> str:
    """Return a comparison as plain text with a final newline."""
    one, other = (one_line(run) for run in rows["run"])
    shown = [_shown(name, pair) for name, pair in rows.items() if name != "run"]
    lines = [f"First:  {one}", f"Second: {other}", ""]
    lines += _pairs(("", "first", "second"), shown[:_ROWS]).lines()
    if len(shown) > _ROWS:
        lines.append(f"  and {len(shown) - _ROWS} more rows (see the JSON form)")
    return "\n".join(lines) + "\n"


#: Names of rows with seconds, and what users see instead.
_SECONDS = {
    "duration_s": "session",
    "time_s": "time",
    "startup_s": "start-up",
    "median_s": "median",
}


def _shown(name: str, pair: tuple[Any, Any]) -> tuple[str, tuple[Any, Any], Any]:
    key, of, rest = name.partition(" ")
    if key in _SECONDS:
        return f"{_SECONDS[key]}{of}{rest}", pair, format_duration
    if name.startswith("cost in "):
        return name, pair, partial(format_amount, unit=name.removeprefix("cost in "))
    return name, pair, str
