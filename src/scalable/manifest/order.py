"""Cycles in the order of tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def backward_edges(waits: Mapping[str, Sequence[str]]) -> list[tuple[str, ...]]:
    """Return one cycle for each edge that closes one, from the edge's end to its start.
    Takes linear time, and ignores names in ``waits`` that are not keys.
    """
    cycles: list[tuple[str, ...]] = []
    finished: set[str] = set()
    for start in waits:
        if start in finished:
            continue
        # An explicit stack: a chain of tasks may be longer than Python's recursion limit.
        trail = {start: None}
        stack = [(start, iter(waits[start]))]
        while stack:
            name, others = stack[-1]
            for other in others:
                if other in trail:
                    names = list(trail)
                    cycles.append(tuple(names[names.index(other) :]))
                elif other in waits and other not in finished:
                    trail[other] = None
                    stack.append((other, iter(waits[other])))
                    break
            else:
                stack.pop()
                del trail[name]
                finished.add(name)
    return cycles
