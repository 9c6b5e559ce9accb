"""Decision which calls to run again after the worker of their bundle was lost.

When a worker is lost, the client does not know which call of the bundle was running: the bundle may
not have begun, and messages about ended calls may be missing. Every call that may have been running
becomes a *suspect*. Each suspect is sent again in a bundle of its own, and the worker reports the
start of this bundle before it runs the call. In this way a call that kills its workers is found.
"""

from __future__ import annotations

from distributed.scheduler import KilledWorker

from scalable.client.calls.sent_bundle import SentBundle
from scalable.protocol.bundles import TELL_S
from scalable.protocol.lost_calls import MOST_OUT_OF_MEMORY, OutOfMemory

#: Number of lost workers after which a call is given up; Dask does the same.
LOSSES = 3
#: Largest number of calls of one lost bundle that are suspected.
MOST_SUSPECTS = 256


def judge_loss(
    bundle: SentBundle, error: KilledWorker, call_s: float
) -> tuple[list[int], dict[int, KilledWorker]]:
    """Return the positions of the calls to run again, and of the calls to give up, with errors.

    A call is given up after ``LOSSES`` lost workers, or ``MOST_OUT_OF_MEMORY`` for lack of memory.

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
        return left, {}
    # The calls that were running, or that have ended since the last message.
    unsure = 1 if bundle.suspected else min(MOST_SUSPECTS, 1 + int(2 * TELL_S / max(call_s, 1e-6)))
    allowed = MOST_OUT_OF_MEMORY if isinstance(error, OutOfMemory) else LOSSES
    given_up: dict[int, KilledWorker] = {}
    for position in left[:unsure]:
        number = bundle.numbers[position]
        if bundle.pending.lost(number) >= allowed:
            named = getattr(bundle.pending.function(number), "__qualname__", bundle.key)
            given_up[position] = (
                error.of_call(named)
                if isinstance(error, OutOfMemory)
                else KilledWorker(named, error.last_worker, LOSSES - 1)
            )
    return [position for position in left if position not in given_up], given_up
