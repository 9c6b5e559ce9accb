"""Parts of what is shown of a cluster or of a run: ``page.js`` draws them, or they become lines."""

from __future__ import annotations

import functools
import json
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import resources
from typing import Any

from scalable.harmless import one_line
from scalable.model.overview import TaskCounts
from scalable.palette import css_variables
from scalable.views.cluster_text import BLOCKS, FACTS, progress_in_words, titled
from scalable.views.columns import parts_of
from scalable.views.explanation import short_key
from scalable.views.tables import WIDTH, Table

#: A paragraph (``text``), ``title``, ``block``, ``list``, ``facts``, ``table``, links to ``tasks``,
#: or ``details`` with the pieces in them. Lines show facts from the column ``wide``.
Piece = dict[str, Any]


@functools.cache
def page_file(name: str) -> str:
    """Return a file of a page or notebook: styles with the colours of task names, scripts whole."""
    static = resources.files("scalable.views") / "static"
    text = (static / name).read_text(encoding="utf-8")
    if name == "page.js":  # one module of two files
        return (static / "timeline.js").read_text(encoding="utf-8") + text
    return css_variables() + text if name.endswith(".css") else text


def to_json(document: Any) -> str:
    """Return what the page draws as JSON."""
    return json.dumps(document, separators=(",", ":"), allow_nan=False, default=Table.to_dict)


def text_of(pieces: Iterable[Piece]) -> str:
    """Return pieces as lines of a terminal. Blocks, and facts that are ``whole``, are not cut."""
    return "\n".join(line for piece in pieces for line in _lines_of(piece)) + "\n"


def _lines_of(piece: Piece) -> Iterator[str]:
    if "table" in piece:
        yield from piece["table"].lines()
    elif "title" in piece:
        yield from ("", piece["title"] if ": " in piece["title"] else f"{piece['title']}:")
    elif "block" in piece:
        yield from piece["block"].split("\n")
    elif "list" in piece:
        for item in piece["list"]:
            yield from _wrapped("  - ", item)
    elif "facts" in piece:
        for title, value in piece["facts"]:
            if piece.get("whole"):
                yield f"  {title}: {value}"
            else:
                yield from _wrapped(f"{title}: ".ljust(piece.get("wide", 0)), value)
    else:
        yield from _wrapped("  ", piece["text"])


def _wrapped(first: str, text: str) -> list[str]:
    """Return a paragraph as lines that are indented as far as its ``first`` characters."""
    rest = " " * len(first)
    return textwrap.wrap(
        text, WIDTH, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False
    )


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
    return [{"table": made, **options}] if made.rows else [{"text": made.empty}]


def labelled(blocks: Iterable[tuple[str, str | None]]) -> list[Piece]:
    """Return strings of several lines, each below its title."""
    told = ((title, block) for title, block in blocks if block)
    return [piece for title, block in told for piece in ({"title": title}, {"block": block})]


def failure(row: Mapping[str, Any], cause: str) -> dict[str, Any]:
    """Return a row of ``failures.jsonl`` as a part of the group with its cause."""
    details = row.get("details") or {}
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
