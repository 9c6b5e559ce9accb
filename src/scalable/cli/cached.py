"""Formatting of cached results as rows, plain text and JSON values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from scalable.cache.differences import differences, parts_by_group, why_missed
from scalable.errors import ClusterError
from scalable.runs.report.table import on_one_line, shorten, table
from scalable.units import counted, format_bytes, format_duration

if TYPE_CHECKING:
    from scalable.cache.checkpoints import CheckpointSizes
    from scalable.cache.entries import Entry
    from scalable.cache.inventory import Item
    from scalable.cache.outcomes import Collected, Verified

#: Number of shown digits of a key, usually enough to name it.
SHORT: Final = 12
#: Smallest number of digits of a key that name it.
LEAST: Final = 4
_HEADER = ("function", "key", "task", "tag", "size", "saves", "age", "last use")
_MISSING = "-"
#: Maximum number of characters of names in the table.
_FUNCTION, _NAME = 48, 16
#: Maximum number of parts of one kind that ``why`` shows.
_SHOWN = 12
_HEX = frozenset("0123456789abcdef")


@dataclass(frozen=True)
class CachedResult:
    """A cached result."""

    key: str
    #: Qualified name of the function.
    function: str
    #: Empty if the task had none, as for ``tag`` and ``run``.
    task: str
    tag: str
    run: str
    #: Bytes in the store.
    size: int
    #: Running time of the task, which a hit saves.
    cost_s: float
    #: Seconds since it was stored, and since its last use.
    age_s: float
    unused_s: float


#: Sort keys of rows, by name of the order.
ORDERS: Final[Mapping[str, Callable[[CachedResult], Any]]] = {
    "newest": lambda row: row.age_s,
    "used": lambda row: row.unused_s,
    "size": lambda row: -row.size,
    "cost": lambda row: -row.cost_s,
    "function": lambda row: (row.function, row.age_s),
}


def rows_of(items: Iterable[Item], now: float) -> list[CachedResult]:
    """Return the readable results as rows, with ages relative to ``now`` (epoch seconds)."""
    return [
        CachedResult(
            item.key,
            item.entry.function,
            item.entry.task,
            item.entry.tag,
            item.entry.run,
            item.size,
            item.entry.cost_s,
            max(0.0, now - item.entry.created),
            max(0.0, now - item.used),
        )
        for item in items
        if item.entry is not None
    ]


def is_named(function: str, name: str) -> bool:
    """Return whether ``name`` is a function's full dotted name or the last parts of it."""
    return function == name or function.endswith(f".{name}")


def render_rows(rows: Sequence[CachedResult], limit: int | None, unreadable: int) -> str:
    """Format the table of results with totals, and the number of unreadable entries."""
    shown = rows if limit is None else rows[:limit]
    lines = table(
        _HEADER,
        [
            (
                shorten(row.function, _FUNCTION),
                row.key[:SHORT],
                shorten(row.task, _NAME) or _MISSING,
                shorten(row.tag, _NAME) or _MISSING,
                format_bytes(row.size),
                format_duration(row.cost_s),
                format_duration(row.age_s),
                format_duration(row.unused_s),
            )
            for row in shown
        ],
        width=None,
    )
    if len(shown) < len(rows):
        lines.append(f"  and {counted(len(rows) - len(shown), 'more result')}")
    size, cost_s = sum(row.size for row in rows), sum(row.cost_s for row in rows)
    lines.append(
        f"{counted(len(rows), 'result')}, {format_bytes(size)}, computed in "
        f"{format_duration(cost_s)}"
    )
    if unreadable:
        entries = "1 entry" if unreadable == 1 else f"{unreadable} entries"
        lines.append(f"{entries} cannot be read: `scalable cache verify` shows why")
    return "\n".join(lines) + "\n"


def rows_data(rows: Sequence[CachedResult], limit: int | None, unreadable: int) -> dict[str, Any]:
    """Return the content of :func:`render_rows` as plain JSON values."""
    return {
        "results": [asdict(row) for row in (rows if limit is None else rows[:limit])],
        "sum": {
            "results": len(rows),
            "size": sum(row.size for row in rows),
            "cost_s": sum(row.cost_s for row in rows),
            "unreadable": unreadable,
        },
    }


def keys_of(words: Iterable[str], keys: Iterable[str]) -> list[str]:
    """Return the keys with the given unique prefixes, or raise ClusterError."""
    known = sorted(keys)
    chosen: dict[str, None] = {}
    for word in words:
        found = [key for key in known if key.startswith(word.lower())] if is_start(word) else []
        if not found:
            raise ClusterError(
                f"no result has the key {word}", hint="`scalable cache ls` shows the keys"
            )
        if len(found) > 1:
            raise ClusterError(
                f"{len(found)} results have keys that begin with {word}",
                hint=f"write more digits, such as {found[0][: max(SHORT, len(word) + 4)]}",
            )
        chosen[found[0]] = None
    return list(chosen)


def is_start(word: str) -> bool:
    """Return whether a word can be the prefix of a key."""
    return LEAST <= len(word) <= 64 and _HEX.issuperset(word.lower())


def called(word: str, entries: Sequence[Entry]) -> Entry:
    """Return the result with a key prefix or a function's latest result, or raise ClusterError."""
    own = [one for one in entries if is_named(one.function, word)]
    functions = sorted({one.function for one in own})
    if word in functions:
        own, functions = [one for one in own if one.function == word], [word]
    if len(functions) > 1:
        raise ClusterError(
            f"{word} names {len(functions)} functions", hint=f"write {' or '.join(functions[:5])}"
        )
    if own:
        return max(own, key=lambda one: one.created)
    if not is_start(word):
        raise ClusterError(
            f"no result of a function {word!r} is stored",
            hint="`scalable cache ls` shows functions and keys",
        )
    (key,) = keys_of([word], (one.key for one in entries))
    return next(one for one in entries if one.key == key)


def why_data(entry: Entry, nearest: Entry | None, number: int) -> dict[str, Any]:
    """Return the parts of a key, and the differences from the nearest earlier result."""
    found = () if nearest is None else differences(entry.function, entry.parts, nearest.parts)
    return {
        "key": entry.key,
        "function": entry.function,
        "task": entry.task,
        "tag": entry.tag,
        "run": entry.run,
        "host": entry.host,
        "created": entry.created,
        "cost_s": entry.cost_s,
        "results_of_function": number,
        "parts": _without_environment(entry.parts),
        "why": why_missed(entry.function, entry.parts, None if nearest is None else nearest.parts),
        "nearest": None
        if nearest is None
        else {
            "key": nearest.key,
            "created": nearest.created,
            "differences": [{"part": one.part, "sentence": one.sentence} for one in found],
        },
    }


def _without_environment(parts: Mapping[str, str]) -> dict[str, str]:
    """Return parts without the possibly secret values of environment variables."""
    return {name: "" if name.startswith("environment:") else parts[name] for name in sorted(parts)}


def render_why(entry: Entry, nearest: Entry | None, number: int, now: float) -> str:
    """Format the facts of :func:`why_data`."""
    told = [f", {name} {text}" for name, text in _circumstances(entry) if text]
    ages = [format_duration(s) for s in (max(0.0, now - entry.created), entry.cost_s)]
    lines = [
        f"{entry.function}, key {entry.key[:SHORT]}",
        f"  stored {ages[0]} ago, ran {ages[1]}{''.join(told)}",
        "",
        "Parts of the key:",
    ]
    for group, texts in parts_by_group(entry.parts).items():
        if group == "function":
            continue  # its code and its name are reported above
        more = f" and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
        lines.append(f"  {group:12} {', '.join(texts[:_SHOWN])}{more}")
    lines.append("")
    if nearest is None:
        lines.append("There is no earlier result of this function.")
        return "\n".join(map(on_one_line, lines)) + "\n"
    found = differences(entry.function, entry.parts, nearest.parts)
    age = format_duration(max(0.0, now - nearest.created))
    of = f", the nearest of {counted(number - 1, 'other result')}" if number > 2 else ""
    lines.append(
        f"It differs from {nearest.key[:SHORT]}, stored {age} ago{of}:"
        if found
        else f"Its parts are those of {nearest.key[:SHORT]}, stored {age} ago."
    )
    lines += [f"  {one.sentence}" for one in found]
    return "\n".join(map(on_one_line, lines)) + "\n"


def _circumstances(entry: Entry) -> tuple[tuple[str, str], ...]:
    return ("task", entry.task), ("tag", entry.tag), ("run", entry.run), ("on", entry.host)


def render_verified(url: str, found: Verified, removed: int | None) -> str:
    """Format the outcome of a verification. ``removed`` is None if removal was not requested."""
    lines = [f"{one.subject[:SHORT]}  {one.kind}: {one.reason}" for one in found.faults]
    entries = "1 entry" if found.entries == 1 else f"{found.entries} entries"
    end = f"{len(found.faults)} of them damaged" if found.faults else "none damaged"
    lines.append(f"{url}: {entries}, {format_bytes(found.size)}, {end}")
    if removed is not None and found.faults:
        lines.append(f"removed {removed} of the damaged ones")
    return "\n".join(map(on_one_line, lines)) + "\n"


def collected_lines(found: Collected, checkpoints: CheckpointSizes) -> list[str]:
    """Return what was or would be removed, one line for each kind."""
    return [
        f"{counted(number, noun)}{size}"
        for number, noun, size in (
            (found.removed, "result", f" of {format_bytes(found.size)}"),
            (checkpoints.number, "checkpoint", f" of {format_bytes(checkpoints.size)}"),
            (found.leftovers, "file", " of processes that ended"),
        )
        if number
    ]


def render_collected(
    url: str, found: Collected, checkpoints: CheckpointSizes, *, dry_run: bool
) -> str:
    """Format what was or would be removed, and what stays."""
    verb = "would remove" if dry_run else "removed"
    rest = "would stay" if dry_run else "stays" if found.left.entries == 1 else "stay"
    left = f"{counted(found.left.entries, 'result')} of {format_bytes(found.left.size)}"
    lines = [f"{verb} {line}" for line in collected_lines(found, checkpoints)]
    return "\n".join([*(lines or ["nothing to remove"]), f"{left} {rest} in {url}"]) + "\n"
