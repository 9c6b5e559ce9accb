"""Events of a cluster as tables: decisions, failures by cause, and the use of its pools."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from scalable.views.cluster import UNTAGGED_NAME
from scalable.views.tables import Column, Table, clock, one_line, row

DECISION_COLUMNS = (
    Column("time"),
    Column("pool", width=16),
    Column("from", number=True),
    Column("to", number=True),
    Column("by", width=12),
    Column("reason"),
)
FAILURE_COLUMNS = (
    Column("calls", number=True),
    Column("last"),
    Column("error", width=24),
    Column("task", width=24),
    Column("message"),
)
#: Characters of a chart by height, the lowest first.
_HEIGHTS = " ▁▂▃▄▅▆▇█"
#: Fields of a sample's pool.
_USED, _SLOTS, _WAITING = 2, 3, 4


def decisions_table(decisions: Sequence[Mapping[str, Any]], now: float) -> Table:
    """Return ``scaling.jsonl`` rows, given the oldest first, as a table with the newest first."""
    rows = []
    for number, told in reversed(list(enumerate(decisions))):
        tag, at = str(told.get("tag") or ""), told.get("timestamp")
        values = (at, tag, told.get("from"), told.get("to"), told.get("source"), told.get("reason"))
        texts = (
            clock(at, now),
            tag or UNTAGGED_NAME,
            *("-" if v is None else v for v in values[2:]),
        )
        rows.append(row(f"{at} {number}", values, texts, pool=tag))
    return Table(DECISION_COLUMNS, tuple(rows), "no decisions yet")


def failures_table(failures: Iterable[Mapping[str, Any]], now: float) -> Table:
    """Return the failures grouped by cause, the newest first.

    The cause is the class of the error and the location in the user's code, or else the task.
    ``failures`` are rows of ``failures.jsonl``, the oldest first. ``now`` is in seconds since 1970.
    """
    rows = []
    for cause, (count, last) in reversed(list(failures_by_cause(failures).items())):
        details = last.get("details") or {}
        at, name = last.get("timestamp"), details.get("task_name") or details.get("phase") or ""
        values = (count, at, last.get("failure_class", ""), name, last.get("message", ""))
        texts = (count, clock(at, now), *values[2:])
        rows.append(row(cause, values, texts, pool=details.get("tag") or ""))
    return Table(FAILURE_COLUMNS, tuple(rows), "no failures")


def failures_by_cause(
    failures: Iterable[Mapping[str, Any]],
) -> dict[str, tuple[int, Mapping[str, Any]]]:
    """Map causes to the number of their tasks and the last row, the latest cause last."""
    groups: dict[str, tuple[int, Mapping[str, Any]]] = {}
    for told in failures:
        details = told.get("details") or {}
        place = details.get("frame") or details.get("task_name") or details.get("tag") or ""
        cause = f"{told.get('failure_class')}\n{place}"
        count, _ = groups.pop(cause, (0, told))
        groups[cause] = count + int(told.get("count") or 1), told
    return groups


def failure_in_words(failure: Mapping[str, Any], now: float) -> list[tuple[str, str]]:
    """Return a failure's parts as titles and texts, which callers must make harmless."""
    details = failure.get("details") or {}
    facts = (
        ("Error", f"{failure.get('failure_class', '?')}: {failure.get('message', '')}"),
        ("Time", clock(failure.get("timestamp"), now)),
        ("Task", details.get("task_name")),
        ("Call", details.get("task_id")),
        ("Arguments", details.get("arguments")),
        ("Where", details.get("frame")),
        ("Pool", details.get("tag")),
        ("Worker", details.get("worker")),
        ("Tries", details.get("tries")),
        ("Standard error", details.get("stderr")),
        ("Last output of the worker", details.get("output")),
        ("Traceback", details.get("traceback")),
    )
    return [(title, str(text)) for title, text in facts if text not in (None, "")]


def use_lines(samples: Sequence[Mapping[str, Any]], width: int) -> list[str]:
    """Return each pool's queue and utilisation over time as charts of ``width`` characters."""
    lines = []
    for tag in dict.fromkeys(tag for sample in samples for tag in sample["pools"]):
        points = [sample["pools"][tag] for sample in samples if tag in sample["pools"]]
        slots = max(1, *(point[_SLOTS] for point in points))
        longest = max(point[_WAITING] for point in points)
        last = points[-1]
        name = one_line(tag or UNTAGGED_NAME)
        lines += [
            f"{name}: {last[_USED]} of {last[_SLOTS]} slots used, {last[_WAITING]} calls wait",
            f"  used slots (of {slots})",
            "  " + drawn([point[_USED] for point in points], slots, width - 2),
            f"  waiting calls (most: {longest})",
            "  " + drawn([point[_WAITING] for point in points], max(1, longest), width - 2),
        ]
    return lines


def drawn(values: Sequence[float], highest: float, width: int) -> str:
    """Return values over time as one line of characters of different heights.

    If there are more values than characters, each character shows the largest of its values. A
    value above 0 has a height above 0.
    """
    if not values or width < 1:
        return ""
    count = min(width, len(values))
    parts = [
        values[len(values) * place // count : len(values) * (place + 1) // count]
        for place in range(count)
    ]
    top = len(_HEIGHTS) - 1
    heights = [min(top, -(-max(part) * top // max(highest, 1e-9))) for part in parts]
    return "".join(_HEIGHTS[int(height)] for height in heights)
