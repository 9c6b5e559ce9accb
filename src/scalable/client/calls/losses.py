"""Decision about the calls of a bundle whose worker was lost.

A bundle that is lost may have waited at its worker, and the client may not have been told of the
calls that ended last. So the calls of a lost bundle that may have been running are suspected: each
of them is sent again as a bundle of its own, and the scheduler is told before it begins. The call
that ends its workers is known from then on.
"""

from __future__ import annotations

from distributed.scheduler import KilledWorker

from scalable.client.calls.sent_bundle import SentBundle
from scalable.protocol.bundles import TELL_S

#: Number of lost workers after which their call is given up, as Dask does.
LOSSES = 3
#: Largest number of calls of one lost bundle that are suspected.
MOST_SUSPECTS = 256


def judge_loss(bundle: SentBundle, error: KilledWorker, call_s: float) -> list[int]:
    """Return the positions of the calls of a lost bundle to run again; give up the others.

    Parameters
    ----------
    bundle
        Bundle that was lost with its worker.
    error
        Error of Dask, which names the worker.
    call_s
        Mean duration of the calls in seconds.
    """
    left = bundle.left()
    if bundle.suspected and not bundle.begun:
        return left
    # The calls that were running, or that have ended since the last message.
    unsure = 1 if bundle.suspected else min(MOST_SUSPECTS, 1 + int(2 * TELL_S / max(call_s, 1e-6)))
    for position in left[:unsure]:
        number = bundle.numbers[position]
        if bundle.pending.lost(number) >= LOSSES:
            named = getattr(bundle.pending.function(number), "__qualname__", bundle.key)
            bundle.fail([position], KilledWorker(named, error.last_worker, LOSSES - 1))
    return bundle.left()
