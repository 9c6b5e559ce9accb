"""Precedence of the waiting calls of a cluster: the sort keys by which they run. No I/O.

The keys are those of Dask with the rank of the call in them, see :class:`Precedence`.
:mod:`scalable.scaling.order` computes the ranks.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import NamedTuple, TypeVar

#: Share of the workers' memory that results may take before the ranks no longer count, and share
#: below which they count again.
MUCH_MEMORY, LITTLE_MEMORY = 0.3, 0.2

Id = TypeVar("Id", bound=Hashable)


class Precedence(NamedTuple):
    """Sort key of a call; the call with the smallest key runs first.

    Attributes
    ----------
    user
        Negative of the priority that the user gave. It comes before everything else.
    epoch
        Number of the oldest graph whose unfinished calls are connected with the call, by Dask's
        count of graphs. Workflows that have nothing to do with each other run first come, first
        served. Negative for calls that calls have made.
    rank
        Negative of the rank, see :func:`scalable.scaling.order.rank`; 0 for all calls while results
        fill the memory.
    graph
        Number of the graph in which the call was submitted.
    order
        Place of the call in Dask's static order of its graph.
    """

    user: float
    epoch: float
    rank: float
    graph: int
    order: float


def shared_epochs(epochs: Mapping[Id, float], waits: Mapping[Id, Iterable[Id]]) -> dict[Id, float]:
    """Return the epoch of each unfinished call: the smallest among the calls connected with it.

    Without this, an old call could wait for a call of a young graph behind all graphs between them.

    Parameters
    ----------
    epochs
        Id -> present epoch of an unfinished call. Negative epochs are left as they are.
    waits
        Id -> ids of the calls that the call waits for. Ids without an epoch count as ended calls.
    """
    if len(set(epochs.values())) < 2:
        return dict(epochs)
    parents: dict[Id, Id] = {}

    def root(call: Id) -> Id:
        while (above := parents.get(call, call)) != call:
            parents[call] = call = parents.get(above, above)
        return call

    for call, others in waits.items():
        if epochs.get(call, -1.0) < 0:
            continue
        mine = root(call)
        for other in others:
            if epochs.get(other, -1.0) >= 0 and (theirs := root(other)) != mine:
                # The root of a set is its call with the smallest epoch.
                if epochs[theirs] < epochs[mine]:
                    mine, theirs = theirs, mine
                parents[theirs] = mine
    return {call: epochs[root(call)] if at >= 0 else at for call, at in epochs.items()}


def ranks_count(stored: float, memory: float, *, counted: bool) -> bool:
    """Return whether the order of calls is to follow the ranks, by the memory of the workers.

    Long paths first makes many results that wait for later calls. Dask's static order releases
    them sooner, and applies as long as results take much of the workers' memory.

    Parameters
    ----------
    stored
        Bytes of the results that the workers keep.
    memory
        Bytes of memory that the workers have; 0 if unknown.
    counted
        Whether the ranks count at present.
    """
    return not memory or stored < memory * (MUCH_MEMORY if counted else LITTLE_MEMORY)
