"""Rows of ``remembered.jsonl``: the cache outcomes of tasks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from scalable.spec.remembered import RememberedOutcome, RememberedTally, RememberedTotals


def outcomes_in(
    rows: Iterable[Mapping[str, Any]],
) -> Iterator[tuple[str, str | None, RememberedOutcome]]:
    """Yield task name, tag and outcome of each valid row."""
    for row in rows:
        name, tag = row.get("task_name"), row.get("tag")
        if not isinstance(name, str):
            continue
        try:
            outcome = RememberedOutcome.from_message(row)
        except (KeyError, TypeError, ValueError, OverflowError):
            continue
        yield name, tag if isinstance(tag, str) else None, outcome


def totals_of(rows: Iterable[Mapping[str, Any]]) -> RememberedTotals:
    """Return the totals of the outcomes in rows of ``remembered.jsonl``."""
    tally = RememberedTally()
    for name, _, outcome in outcomes_in(rows):
        tally.add(name, outcome)
    return tally.totals()


@dataclass(frozen=True)
class KeyedCalls:
    """Tasks of one name with cached results."""

    #: Number of tasks by key.
    numbers: Counter[str] = field(default_factory=Counter)
    #: Number of tasks whose keys are not in the record.
    unknown: int = 0


def keyed_calls(rows: Iterable[Mapping[str, Any]], task: str) -> KeyedCalls:
    """Return the tasks of a name in rows of ``remembered.jsonl``.
    Several misses of one key are attempts of one task.
    """
    found, missed, unknown = Counter[str](), set[str](), 0
    for name, _, outcome in outcomes_in(rows):
        if name != task:
            continue
        unknown += max(0, outcome.count - len(outcome.keys))
        if outcome.is_hit:
            found.update(outcome.keys)
        else:
            missed.update(outcome.keys)
    return KeyedCalls(found + Counter(missed), unknown)
