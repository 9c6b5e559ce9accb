"""Cycles in the order of tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def backward_edges(waits: Mapping[str, Sequence[str]]) -> list[tuple[str, ...]]:
    """Find the edges that close a cycle, in time linear in the number of edges.

    Parameters
    ----------
    waits
        Name -> names that it waits for; names that are not keys are ignored.

    Returns
    -------
    list of tuple of str
        One cycle for each such edge, from the edge's end to its start.
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
