"""Ready calls of a simulated pool, in the order in which they run. No I/O."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import count
from typing import Protocol

from scalable.scaling.order import Length, rank, remaining_paths
from scalable.scaling.task_model import Kind, TaskModel

#: Maximum number of unfinished calls with which ranks are computed as soon as a length has changed.
#: With more calls, a share of them has to end first. This bounds the time of a simulation.
_SMALL, _ENDED = 500, 0.1


class ReadyCalls(Protocol):
    """Queue of ready calls."""

    def append(self, call: int, /) -> None:
        """Add a call that has become ready."""

    def popleft(self) -> int:
        """Remove and return the call that runs next."""

    def __iter__(self) -> Iterator[int]:
        """Iterate over the calls in the order in which they run."""

    def __len__(self) -> int:
        """Return the number of calls."""


class RankedCalls:
    """Queue whose call with the largest rank runs first; equal ones run first come, first served.

    Parameters
    ----------
    ranks
        Call -> rank. :meth:`reorder` has to be called when ranks have changed.
    """

    def __init__(self, ranks: Mapping[int, float]) -> None:
        self._ranks = ranks
        self._number = count()
        self._heap: list[tuple[float, int, int]] = []

    def append(self, call: int) -> None:
        """Add a call that has become ready."""
        heapq.heappush(self._heap, (-self._ranks[call], next(self._number), call))

    def popleft(self) -> int:
        """Remove and return the call that runs next."""
        return heapq.heappop(self._heap)[-1]

    def reorder(self) -> None:
        """Sort the calls by their present ranks."""
        self._heap = [(-self._ranks[call], number, call) for _, number, call in self._heap]
        heapq.heapify(self._heap)

    def __iter__(self) -> Iterator[int]:
        """Iterate over the calls in the order in which they run."""
        return (call for *_, call in sorted(self._heap))

    def __len__(self) -> int:
        """Return the number of calls."""
        return len(self._heap)


class Ranking:
    """Ranks of the calls of a graph, computed again when the learned lengths have changed.

    Parameters
    ----------
    calls
        Call -> its kind and the calls that it waits for, in the order of submission.
    dependents
        Call -> number of calls that wait for it; calls for which none waits may be left out.
    model
        Model of the running times; it learns from the calls that end.
    """

    def __init__(
        self,
        calls: Iterable[tuple[int, tuple[Kind, tuple[int, ...]]]],
        dependents: Mapping[int, int],
        model: TaskModel,
    ) -> None:
        self.model = model
        self._unfinished = dict(calls)
        self._dependents = dependents
        self._ranks: dict[int, float] = {}
        self._queues: list[RankedCalls] = []
        kinds = {kind for kind, _ in self._unfinished.values()}
        self._lengths = {kind: Length(kind, model) for kind in kinds}
        self._stale, self._ended = False, 0
        self._compute()

    def queue(self) -> RankedCalls:
        """Return a new queue that follows the ranks."""
        self._queues.append(RankedCalls(self._ranks))
        return self._queues[-1]

    def ended(self, call: int) -> None:
        """Take a call out after the model has learned from it; compute the ranks if necessary."""
        kind, _ = self._unfinished.pop(call)
        self._ended += 1
        if self._lengths[kind].ended(self.model):
            self._stale = True
        left = len(self._unfinished)
        if self._stale and (left <= _SMALL or self._ended >= _ENDED * left):
            for length in self._lengths.values():
                length.read(self.model)
            self._compute()
            for queue in self._queues:
                queue.reorder()

    def _compute(self) -> None:
        paths = remaining_paths(self._unfinished, self._lengths)
        count = self._dependents
        self._ranks.update({call: rank(path, count.get(call, 0)) for call, path in paths.items()})
        self._stale, self._ended = False, 0


def first_come() -> ReadyCalls:
    """Return a queue whose calls run in the order in which they became ready."""
    return deque()
