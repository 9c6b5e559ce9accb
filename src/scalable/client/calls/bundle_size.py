"""The size of bundles: how many calls are sent together as one Dask task."""

from __future__ import annotations

import math

#: Wanted duration of a bundle in seconds: long compared with the cost of sending one, and short
#: compared with what a user notices.
BUNDLE_S = 0.1
#: Seconds of CPU time that client and scheduler spend on a bundle, however small it is: 7 to 8 ms
#: together where they share a process and a slow machine, of which a bundle that runs hides a part.
SENDING_S = 0.005
#: Largest number of calls in a bundle.
LARGEST_BUNDLE = 8192
#: Largest number of bytes of a bundle, which is one message.
LARGEST_BYTES = 16_000_000
#: Number of unfinished bundles for each slot: while one bundle runs, the next bundle already waits
#: at the worker.
AHEAD = 2
#: Number of bundles that are in flight at first: the calls may be short, and are better sent
#: together then. After these seconds the number doubles if half of the bundles have begun, again
#: and again until a call has ended.
FIRST, FIRST_S = 32, 0.1
#: Smallest number of bundles into which a backlog is divided: its calls may be longer than those
#: before, and a bundle of such calls keeps them from other slots until it gives them back.
SHARES = 4
#: Seconds after which a turn of the event loop sends no further bundle, so that it goes on.
TURN_S = 0.01
#: Largest number of calls of an iterator that wait in the client, and largest number of bytes of
#: their arguments or results; each slot has a call in any case.
MOST_WAITING, MOST_WAITING_BYTES = 65_536, 64_000_000
#: Number of calls of an iterator that wait in any case while they are refused: one after the other,
#: as on a pool that is given up, each would take a second. Seconds for which the waiting calls keep
#: all slots busy in any case, and number of calls until the first one has ended.
USUAL_WAITING, USUAL_S, UNKNOWN_WAITING = 1024, 10.0, 64


class BundleSizing:
    """Measurements of the duration and size of calls, which set the number of calls in a bundle.

    Attributes
    ----------
    mean_s
        Mean duration of the latest calls in seconds; None before the first one has ended.
    """

    def __init__(self) -> None:
        self.mean_s: float | None = None
        self._bytes_per_call = self._bytes_per_result = 0.0
        self._is_refused = False

    def sent(self, calls: int, nbytes: int) -> None:
        """Record the size of a bundle that is sent.

        Parameters
        ----------
        calls, nbytes
            Number of calls in the bundle, and the size of the bundle in bytes.
        """
        self._bytes_per_call = max(nbytes / calls, 0.5 * self._bytes_per_call)

    def received(self, calls: int, nbytes: int) -> None:
        """Record the size of results.

        Parameters
        ----------
        calls, nbytes
            Number of calls, and the size of all their results in bytes.
        """
        if calls:
            self._bytes_per_result = max(nbytes / calls, 0.5 * self._bytes_per_result)

    def observe(self, calls: int, seconds: float) -> None:
        """Record the duration of calls that have ended.

        Parameters
        ----------
        calls, seconds
            Number of calls, and their total duration.
        """
        if calls:
            self._is_refused = False
            latest = seconds / calls
            self.mean_s = latest if self.mean_s is None else 0.25 * self.mean_s + 0.75 * latest

    def refused(self) -> None:
        """Record that calls are refused, for lack of workers, without being run."""
        self._is_refused = True

    def at_least(self, seconds: float) -> None:
        """Raise the mean duration to the time for which a call has already been running."""
        self.mean_s = max(self.mean_s or 0.0, seconds)

    def size(self, backlog: int, slots: int) -> int:
        """Return the number of calls in the next bundle.

        A share of the backlog for each slot keeps all of them busy. Where calls are short and slots
        are many, such a bundle takes less time to run than to send. With ``W`` seconds of waiting
        calls in ``k`` bundles, the last call has ended after about ``k SENDING_S + W / k`` seconds,
        which is least if each bundle takes ``sqrt(W SENDING_S)`` seconds. What is left in the end
        goes in one bundle if it takes less time than sending another one.

        Parameters
        ----------
        backlog
            Number of calls that wait.
        slots
            Number of calls that can run at once.
        """
        if self.mean_s is None:
            return 1
        mean_s = max(self.mean_s, 1e-7)
        quick = int(BUNDLE_S / mean_s)
        light = int(LARGEST_BYTES / max(self._bytes_per_call, 1.0))
        worthwhile = int(math.sqrt(backlog * SENDING_S / mean_s))
        share = max(backlog // (2 * slots), min(worthwhile, backlog // SHARES))
        least = min(backlog, int(SENDING_S / mean_s))
        return max(1, min(quick, light, max(share, least), LARGEST_BUNDLE))

    def _usual(self, slots: int) -> int:
        if self._is_refused:
            return USUAL_WAITING
        if self.mean_s is None:
            return UNKNOWN_WAITING
        return int(min(USUAL_WAITING, USUAL_S * slots / max(self.mean_s, 1e-7)))

    def lookahead(self, slots: int) -> int:
        """Return how many calls of an iterator should wait, so that no slot runs out of work.

        They are twice what all slots take, or what takes all slots ``USUAL_S`` seconds but not more
        than ``USUAL_WAITING`` calls. In any case they are not more than ``MOST_WAITING`` calls, and
        not more than have ``MOST_WAITING_BYTES`` of arguments or results.

        Parameters
        ----------
        slots
            Number of calls that can run at once.
        """
        busy = 2 * AHEAD * slots * self.size(LARGEST_BUNDLE * 2 * slots, slots)
        if self._bytes_per_call:  # they are known not to be large
            busy = max(busy, self._usual(slots))
        heaviest = max(self._bytes_per_call, self._bytes_per_result, 1.0)
        return max(slots, min(busy, MOST_WAITING, int(MOST_WAITING_BYTES / heaviest)))
