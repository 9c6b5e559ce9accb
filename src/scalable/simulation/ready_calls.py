"""Ready calls of a simulated pool, in the order in which they run. No I/O."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import count
from typing import Literal, Protocol

from scalable.scaling.order import CHANGED, Rank, ranks
from scalable.scaling.task_model import Kind, TaskModel

#: ``critical-path``: the call with the longest remaining path first, by the lengths learned so far.
#: ``submitted``: the call first that became ready first.
Order = Literal["critical-path", "submitted"]
ORDERS: tuple[Order, ...] = ("critical-path", "submitted")
#: Maximum number of unfinished calls with which ranks are computed as soon as a length has changed.
#: With more calls, a share of them has to end first. This bounds the time of a simulation.
_SMALL, _ENDED = 500, 0.05


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
    ranking
        Call -> rank. :meth:`reorder` has to be called when ranks have changed.
    """

    def __init__(self, ranking: Mapping[int, Rank]) -> None:
        self._ranking = ranking
        self._number = count()
        self._heap: list[tuple[bool, float, int, int]] = []

    def _key(self, call: int) -> tuple[bool, float]:
        rank = self._ranking[call]
        return not rank.sample, -rank.path_s

    def append(self, call: int) -> None:
        """Add a call that has become ready."""
        heapq.heappush(self._heap, (*self._key(call), next(self._number), call))

    def popleft(self) -> int:
        """Remove and return the call that runs next."""
        return heapq.heappop(self._heap)[-1]

    def reorder(self) -> None:
        """Sort the calls by their present ranks."""
        self._heap = [(*self._key(call), number, call) for *_, number, call in self._heap]
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
    model
        Model of the running times; it learns from the calls that end.
    """

    def __init__(
        self, calls: Iterable[tuple[int, tuple[Kind, tuple[int, ...]]]], model: TaskModel
    ) -> None:
        self.model = model
        self._unfinished = dict(calls)
        self._ranks: dict[int, Rank] = {}
        self._queues: list[RankedCalls] = []
        #: Kind -> mean running time with which the ranks were computed, and whether it was known.
        self._used: dict[Kind, tuple[float, bool]] = {}
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
        if not self._stale:
            used, known = self._used[kind]
            self._stale = not known or abs(self.model.mean_s(kind) - used) > CHANGED * used
        left = len(self._unfinished)
        if self._stale and (left <= _SMALL or self._ended >= _ENDED * left):
            self._compute()
            for queue in self._queues:
                queue.reorder()

    def _compute(self) -> None:
        self._ranks.update(ranks(self._unfinished, self.model))
        kinds = {kind for kind, _ in self._unfinished.values()}
        self._used = {kind: (self.model.mean_s(kind), self.model.knows(kind)) for kind in kinds}
        self._stale, self._ended = False, 0


def first_come() -> ReadyCalls:
    """Return a queue whose calls run in the order in which they became ready."""
    return deque()
