"""Rows of ``remembered.jsonl``: the cache outcomes of tasks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from scalable.model.remembered import RememberedOutcome, RememberedTally, RememberedTotals


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
