"""Parts of the page of a cluster or of a run, as plain values that ``page.js`` draws."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from scalable.harmless import one_line
from scalable.model.overview import TaskCounts
from scalable.views.cluster_text import BLOCKS, FACTS, progress_in_words, titled
from scalable.views.columns import parts_of
from scalable.views.explanation import short_key
from scalable.views.tables import Table

#: A paragraph (``text``), ``title``, ``block``, ``list``, ``facts``, ``table``, links to ``tasks``,
#: or ``details`` with the pieces in them.
Piece = dict[str, Any]


def progress(counts: TaskCounts, facts: Iterable[Sequence[Any]]) -> dict[str, Any]:
    """Return the progress of all tasks: the share of finished ones, and states other than 0."""
    words, percent = progress_in_words(counts)
    parts = parts_of(counts).items()
    return {
        "percent": percent,
        "text": words,
        "states": [[state, count, f"{count} {state}"] for state, count in parts if count],
        "facts": [list(fact) for fact in facts],
    }


def table(made: Table, **options: Any) -> list[Piece]:
    """Return a table as the piece of a part, or its message if it has no rows."""
    return [{"table": made.to_dict(), **options}] if made.rows else [{"text": made.empty}]


def labelled(blocks: Iterable[tuple[str, str | None]]) -> list[Piece]:
    """Return strings of several lines, each below its title."""
    told = ((title, block) for title, block in blocks if block)
    return [piece for title, block in told for piece in ({"title": title}, {"block": block})]


def failure(row: Mapping[str, Any], cause: str) -> dict[str, Any]:
    """Return a row of ``failures.jsonl`` as a part of the group with its cause."""
    details = row.get("details")
    details = details if isinstance(details, Mapping) else {}
    facts = [[title, one_line(text)] for title, text in titled(FACTS, details)]
    if isinstance(row.get("timestamp"), int | float):
        facts.append(["Time", row["timestamp"], "time"])
    key = details.get("task_id")
    words = details.get("arguments") or short_key(str(key))
    return {
        "cause": cause,
        "count": int(row.get("count") or 1),
        "summary": one_line(f"{row.get('failure_class')}: {row.get('message')}"),
        "tasks": [[str(words), str(key), details.get("position")]] if key else [],
        "pieces": [
            {"facts": facts},
            *labelled([("Message", str(row.get("message") or "")), *titled(BLOCKS, details)]),
        ],
    }
