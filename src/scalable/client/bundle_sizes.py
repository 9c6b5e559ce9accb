"""`BundleSizing`: the number of tasks in a bundle, and of tasks that wait for one."""

from __future__ import annotations

import math

#: Desired duration of a bundle in seconds: long compared with the cost of sending one, and short
#: compared with what a user notices.
BUNDLE_S = 0.1
#: Seconds of CPU time that client and scheduler spend on a bundle, however small it is: 7 to 8 ms
#: together if they share a process and a slow machine, partly hidden by a running bundle.
SENDING_S = 0.005
#: Largest number of tasks in a bundle.
LARGEST_BUNDLE = 32_768
#: Largest number of bytes of a bundle, which is one message. Dask warns of graphs of 10 MB.
LARGEST_BYTES = 8_000_000
#: Number of unfinished bundles for each slot: while one bundle runs, the next one is already at the
#: worker.
AHEAD = 2
#: Smallest number of bundles into which a backlog is divided: its tasks may be longer than earlier
#: ones, and a bundle of such tasks keeps them from other slots until it gives them back.
SHARES = 4
#: Largest number of tasks of an iterator that wait in the client, and largest number of bytes of
#: their arguments or results. Each slot has a task in any case.
MOST_WAITING, MOST_WAITING_BYTES = 65_536, 64_000_000
#: Number of tasks of an iterator that wait in any case while they are refused: one after the other,
#: as on a pool that is given up, each would take a second. Seconds for which the waiting tasks keep
#: all slots busy in any case, and number of tasks until the first one has finished.
USUAL_WAITING, USUAL_S, UNKNOWN_WAITING = 1024, 10.0, 64


class BundleSizing:
    """Measured duration and size of tasks, used to choose the number of tasks in a bundle."""

    def __init__(self) -> None:
        #: Mean duration of the latest tasks in seconds, or None before the first one has finished.
        self.mean_s: float | None = None
        self._bytes_per_call = self._bytes_per_result = 0.0
        self._is_refused = False

    def sent(self, calls: int, nbytes: int) -> None:
        """Record the number of tasks and the size in bytes of a bundle that is sent."""
        self._bytes_per_call = max(nbytes / calls, 0.5 * self._bytes_per_call)

    def received(self, calls: int, nbytes: int) -> None:
        """Record the number of tasks with results, and the size of these results in bytes."""
        if calls:
            self._bytes_per_result = max(nbytes / calls, 0.5 * self._bytes_per_result)

    def observe(self, calls: int, seconds: float) -> None:
        """Record the number and the total duration of tasks that have finished."""
        if calls:
            self._is_refused = False
            latest = seconds / calls
            self.mean_s = latest if self.mean_s is None else 0.25 * self.mean_s + 0.75 * latest

    def refused(self) -> None:
        """Record that tasks failed without running because of a lack of workers."""
        self._is_refused = True

    def at_least(self, seconds: float) -> None:
        """Raise the mean duration to the time for which a task has already been running."""
        self.mean_s = max(self.mean_s or 0.0, seconds)

    def size(self, backlog: int, slots: int) -> int:
        """Return the number of tasks in the next bundle."""
        if self.mean_s is None:
            return 1
        # A share of the backlog for each slot keeps all of them busy. If tasks are short and slots
        # are many, such a bundle takes less time to run than to send. With W seconds of waiting
        # tasks in k bundles, the last task finishes after about k SENDING_S + W / k seconds, which
        # is least if each bundle takes sqrt(W SENDING_S) seconds. The last tasks go in one bundle
        # if the half of them takes less time than sending another one.
        mean_s = max(self.mean_s, 1e-7)
        quick = int(BUNDLE_S / mean_s)
        light = int(LARGEST_BYTES / max(self._bytes_per_call, 1.0))
        worthwhile = int(math.sqrt(backlog * SENDING_S / mean_s))
        share = max(backlog // (2 * slots), min(worthwhile, backlog // SHARES))
        least = min(backlog, int(2 * SENDING_S / mean_s))
        return max(1, min(quick, light, max(share, least), LARGEST_BUNDLE))

    def _usual(self, slots: int) -> int:
        if self._is_refused:
            return USUAL_WAITING
        if self.mean_s is None:
            return UNKNOWN_WAITING
        return int(min(USUAL_WAITING, USUAL_S * slots / max(self.mean_s, 1e-7)))

    def lookahead(self, slots: int) -> int:
        """Return how many tasks of an iterator should wait, so that no slot runs idle."""
        busy = 2 * AHEAD * slots * self.size(LARGEST_BUNDLE * 2 * slots, slots)
        if self._bytes_per_call:  # the size of the tasks is known
            busy = max(busy, self._usual(slots))
        heaviest = max(self._bytes_per_call, self._bytes_per_result, 1.0)
        return max(slots, min(busy, MOST_WAITING, int(MOST_WAITING_BYTES / heaviest)))
