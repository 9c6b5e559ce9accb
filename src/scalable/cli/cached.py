"""Listings and explanations of cached results, as text and as JSON values."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from scalable.cache.checkpoints import CheckpointSizes
from scalable.cache.differences import differences, parts_by_group, why_missed
from scalable.cache.entries import Entry
from scalable.cache.inventory import Item, nearest_earlier
from scalable.cache.outcomes import Collected
from scalable.errors import ClusterError
from scalable.runs.report.table import on_one_line, shorten, table
from scalable.units import counted, format_bytes, format_duration

#: Number of shown digits of a key, usually enough to name it.
SHORT: Final = 12
_HEADER = ("function", "key", "task", "tag", "size", "saves", "age", "last use")
#: Maximum number of characters of names in the table.
_FUNCTION, _NAME = 48, 16
#: Maximum number of parts of one kind that ``why`` shows.
_SHOWN = 12
#: A key, or enough of its first digits to name it.
_KEY: Final = re.compile("[0-9a-fA-F]{4,64}")


#: A cached result as plain JSON values.
Row = Mapping[str, Any]
#: Sort keys of rows, by name of the order.
ORDERS: Final[Mapping[str, Callable[[Row], Any]]] = {
    "newest": lambda row: row["age_s"],
    "used": lambda row: row["unused_s"],
    "size": lambda row: -row["size"],
    "cost": lambda row: -row["cost_s"],
    "function": lambda row: (row["function"], row["age_s"]),
}


def rows_of(items: Iterable[Item], now: float) -> list[Row]:
    """Return the readable results, with ages in seconds relative to ``now`` (epoch seconds)."""
    return [
        {
            "key": item.key,
            **{name: getattr(item.entry, name) for name in ("function", "task", "tag", "run")},
            "size": item.size,
            "cost_s": item.entry.cost_s,
            "age_s": max(0.0, now - item.entry.created),
            "unused_s": max(0.0, now - item.used),
        }
        for item in items
        if item.entry is not None
    ]


def is_named(function: str, name: str) -> bool:
    """Return whether ``name`` is a function's full dotted name or the last parts of it."""
    return function == name or function.endswith(f".{name}")


def listing(rows: Sequence[Row], limit: int | None, unreadable: int) -> tuple[str, dict[str, Any]]:
    """Return results with totals, and the number of unreadable entries: a table, and values."""
    shown = rows[:limit]
    size, cost_s = (sum(row[name] for row in rows) for name in ("size", "cost_s"))
    lines = table(
        _HEADER,
        [
            (
                shorten(row["function"], _FUNCTION),
                row["key"][:SHORT],
                shorten(row["task"], _NAME) or None,
                shorten(row["tag"], _NAME) or None,
                format_bytes(row["size"]),
                *(format_duration(row[name]) for name in ("cost_s", "age_s", "unused_s")),
            )
            for row in shown
        ],
        width=None,
    )
    if len(shown) < len(rows):
        lines.append(f"  and {counted(len(rows) - len(shown), 'more result')}")
    lines.append(
        f"{counted(len(rows), 'result')}, {format_bytes(size)}, computed in "
        f"{format_duration(cost_s)}"
    )
    if unreadable:
        entries = counted(unreadable, "entry", "entries")
        lines.append(f"{entries} cannot be read: `scalable cache verify` shows why")
    total = {"results": len(rows), "size": size, "cost_s": cost_s, "unreadable": unreadable}
    return "\n".join(lines) + "\n", {"results": list(shown), "sum": total}


def key_of(word: str, keys: Iterable[str]) -> str:
    """Return the only key that begins with a word, or raise ClusterError."""
    is_start = _KEY.fullmatch(word) is not None
    found = sorted(key for key in keys if is_start and key.startswith(word.lower()))
    if not found:
        raise ClusterError(
            f"no result has the key {word}", hint="`scalable cache list` lists the keys"
        )
    if len(found) > 1:
        raise ClusterError(
            f"{len(found)} results have keys that start with {word}",
            hint=f"write more digits, such as {found[0][: max(SHORT, len(word) + 4)]}",
        )
    return found[0]


def called(word: str, entries: Sequence[Entry]) -> Entry:
    """Return the result with a key prefix or a function's latest result, or raise ClusterError."""
    own = [one for one in entries if is_named(one.function, word)]
    functions = sorted({one.function for one in own})
    if word in functions:
        own, functions = [one for one in own if one.function == word], [word]
    if len(functions) > 1:
        raise ClusterError(
            f"{len(functions)} functions match {word}", hint=f"write {' or '.join(functions[:5])}"
        )
    if own:
        return max(own, key=lambda one: one.created)
    if not _KEY.fullmatch(word):
        raise ClusterError(
            f"no results of function {word!r} are stored",
            hint="`scalable cache list` lists functions and keys",
        )
    by_key = {one.key: one for one in entries}
    return by_key[key_of(word, by_key)]


def explanation(entry: Entry, entries: Sequence[Entry], now: float) -> tuple[str, dict[str, Any]]:
    """Return a key's parts, and how they differ from the nearest earlier result's."""
    nearest = nearest_earlier(entry, entries)
    before = None if nearest is None else nearest.parts
    found = () if before is None else differences(entry.function, entry.parts, before)
    number = sum(one.function == entry.function for one in entries)
    facts = ("key", "function", "task", "tag", "run", "host", "created", "cost_s")
    data: dict[str, Any] = {name: getattr(entry, name) for name in facts}
    data |= {
        "results_of_function": number,
        # Values of environment variables may be secrets.
        "parts": {
            name: "" if name.startswith("environment:") else text
            for name, text in sorted(entry.parts.items())
        },
        "why": why_missed(entry.function, entry.parts, before),
        "nearest": None
        if nearest is None
        else {
            "key": nearest.key,
            "created": nearest.created,
            "differences": [{"part": one.part, "sentence": one.sentence} for one in found],
        },
    }
    told = (("task", entry.task), ("tag", entry.tag), ("run", entry.run), ("on", entry.host))
    lines = [
        f"{entry.function}, key {entry.key[:SHORT]}",
        f"  stored {_age(entry, now)} ago, ran {format_duration(entry.cost_s)}"
        + "".join(f", {name} {text}" for name, text in told if text),
        "",
        "Parts of the key:",
    ]
    for group, texts in parts_by_group(entry.parts).items():
        if group != "function":  # its code and its name are reported above
            more = f" and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
            lines.append(f"  {group:12} {', '.join(texts[:_SHOWN])}{more}")
    of = f", the nearest of {counted(number - 1, 'other result')}" if number > 2 else ""
    if nearest is None:
        last = "There is no earlier result of this function."
    elif found:
        last = f"It differs from {nearest.key[:SHORT]}, stored {_age(nearest, now)} ago{of}:"
    else:
        last = f"Its parts are those of {nearest.key[:SHORT]}, stored {_age(nearest, now)} ago."
    lines += ["", last, *(f"  {one.sentence}" for one in found)]
    return "\n".join(map(on_one_line, lines)) + "\n", data


def _age(entry: Entry, now: float) -> str:
    return format_duration(max(0.0, now - entry.created))


def collection(
    url: str, found: Collected, checkpoints: CheckpointSizes, *, dry_run: bool
) -> tuple[list[str], str]:
    """Return what was or would be removed, a line for each kind, and a text with what stays."""
    kinds = (
        (found.removed, "result", f" of {format_bytes(found.size)}"),
        (checkpoints.number, "checkpoint", f" of {format_bytes(checkpoints.size)}"),
        (found.leftovers, "file", " of killed processes"),
    )
    lines = [f"{counted(number, noun)}{size}" for number, noun, size in kinds if number]
    verb = "would remove" if dry_run else "removed"
    rest = "would stay" if dry_run else "stays" if found.left.entries == 1 else "stay"
    shown = [f"{verb} {line}" for line in lines] or ["nothing to remove"]
    left = f"{counted(found.left.entries, 'result')} of {format_bytes(found.left.size)}"
    return lines, "\n".join([*shown, f"{left} {rest} in {url}"]) + "\n"
