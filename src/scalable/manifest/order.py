"""Cycles in what waits for what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def backward_edges(waits: Mapping[str, Sequence[str]]) -> list[tuple[str, ...]]:
    """Find the edges that close a cycle, in time linear in their number.

    Parameters
    ----------
    waits
        Name -> the names that it waits for; those that are no key are passed over.

    Returns
    -------
    list of tuple of str
        For each such edge the cycle, from the name that it leads to to the one that it leaves.
    """
    cycles: list[tuple[str, ...]] = []
    finished: set[str] = set()
    for start in waits:
        if start in finished:
            continue
        # An explicit stack: chains of tasks may be longer than Python recurses.
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
