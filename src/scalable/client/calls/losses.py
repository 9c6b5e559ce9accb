"""What becomes of calls whose worker was lost.

A bundle that is lost with its worker may have waited there, and of its calls those that ended last
were not told of yet. So calls of a lost bundle that may have been running are suspected, and sent
again one by one, the scheduler being told before each begins: which one ends its workers is known
from then on.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from distributed import Future
from distributed.scheduler import KilledWorker

from scalable.client.calls.backlog import Outcome, PendingCalls
from scalable.protocol.bundles import TELL_S

#: A call whose worker was lost so often is given up, as Dask does.
LOSSES = 3
#: No more calls of one lost bundle are suspected.
MOST_SUSPECTS = 256


@dataclass
class SentBundle:
    """Pending calls that were sent together.

    Attributes
    ----------
    key, future
        Of the Dask task.
    numbers
        Of its calls, among the pending ones.
    open
        Positions of calls of which nothing was heard yet.
    kept
        Positions of calls whose results wait at the worker.
    heard_at
        When it was heard of last.
    suspected
        Whether the scheduler is told when it begins, and ...
    begun
        ... whether it was; of others, whether it is known to have begun.
    recalled
        Whether its calls were asked back, should it not have begun.
    over
        Whether it has run to its end.
    """

    key: str
    pending: PendingCalls
    numbers: list[Any]
    open: set[int]
    heard_at: float
    suspected: bool
    begun: bool = False
    recalled: bool = False
    over: bool = False
    kept: list[int] = field(default_factory=list)
    future: Future[Any] | None = None

    def left(self) -> list[int]:
        """Positions of calls that somebody still waits for."""
        return sorted(p for p in self.open if not self.pending.is_over(self.numbers[p]))


def judge_loss(bundle: SentBundle, error: KilledWorker, call_s: float) -> list[int]:
    """Which calls of a lost bundle run again, as positions; the others are given up.

    Parameters
    ----------
    bundle
        That was lost with its worker.
    error
        What Dask says of it.
    call_s
        How long its calls take, in seconds.
    """
    left = bundle.left()
    if bundle.suspected and not bundle.begun:
        return left
    # What was running, or has just ended and was not told of yet.
    unsure = 1 if bundle.suspected else min(MOST_SUSPECTS, 1 + int(2 * TELL_S / max(call_s, 1e-6)))
    for position in left[:unsure]:
        number = bundle.numbers[position]
        if bundle.pending.lost(number) >= LOSSES:
            named = getattr(bundle.pending.function(number), "__qualname__", bundle.key)
            ended: Outcome = (None, KilledWorker(named, error.last_worker, LOSSES - 1))
            bundle.pending.settle([number], [ended])
    return bundle.left()
