"""Longest chain of tasks that waited for each other. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from scalable.report.spans import number, text


@dataclass(frozen=True)
class Chain:
    """Tasks that could only run one after the other."""

    #: Sum of their running times.
    seconds: float
    calls: int
    #: Pairs of a task name and its number of tasks in the chain, in order of first appearance.
    names: tuple[tuple[str, int], ...]


def longest_chain(rows: Iterable[Mapping[str, Any]]) -> Chain | None:
    """Return the chain with the longest running time, or None without dependent tasks.
    A chain leads from each task to the one for whose result it waited last: ``after`` in its row.
    """
    lengths: dict[str, float] = {}
    before: dict[str, str] = {}
    named: dict[str, str] = {}
    # A task finishes after the one for which it waited, so that its row comes later.
    for row in rows:
        task_id, length = row.get("task_id"), number(row.get("duration_s"))
        if row.get("state") != "succeeded" or not isinstance(task_id, str) or length is None:
            continue
        after = text(row.get("after"))
        known = lengths.get(after) if after != task_id else None
        if known is not None:
            before[task_id] = after
        else:
            before.pop(task_id, None)
        lengths[task_id] = length + (known or 0.0)
        named[task_id] = text(row.get("task_name")) or task_id
    if not before:
        return None
    last = max(before, key=lambda task_id: lengths[task_id])
    names: dict[str, int] = {}
    seen: set[str] = set()
    current: str | None = last
    while current is not None and current not in seen:
        seen.add(current)
        names[named[current]] = names.get(named[current], 0) + 1
        current = before.get(current)
    return Chain(lengths[last], len(seen), tuple(reversed(names.items())))
