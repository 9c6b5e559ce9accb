"""Decision which waiting bundles to take back from busy workers while other slots are free.

The worker of a bundle is chosen when the bundle is sent, from the expected duration of calls. Where
calls take longer, bundles wait at some workers while other workers have nothing to do.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import islice, takewhile

from scalable.client.calls.sent_bundle import SentBundle

#: Seconds for which a slot has to be free before a bundle is taken back for it: a slot is also free
#: for a moment between two bundles.
FREE_S = 0.1
#: Upper limit of this time in seconds. The time doubles with each withdrawal, because the slot may
#: be in use by another client.
LONGEST_S = 5.0
#: A bundle that waits for so many seconds, and for as long as so many usual calls take, is taken
#: back once a later one has begun: it waits behind a call that is longer than others.
STUCK_S, STUCK_CALLS = 0.5, 10


class Withdrawals:
    """The choice of bundles to take back for free slots."""

    def __init__(self) -> None:
        self._free_since: float | None = None
        self._patience_s = FREE_S
        self._latest_begun = 0.0

    def began(self, bundle: SentBundle) -> None:
        """Note when a bundle was sent that has begun."""
        self._latest_begun = max(self._latest_begun, bundle.heard_at)

    def wanted(
        self,
        waiting: Collection[SentBundle],
        begun: int,
        slots: int,
        now: float,
        call_s: float = 0.0,
    ) -> list[SentBundle]:
        """Return the bundles to take back: those that are stuck, or else for free slots.

        For each free slot it is one at most, the latest ones first.

        This is asked with each bundle that begins or ends: it must not look at all of them.

        Parameters
        ----------
        waiting
            Bundles that have not begun, in the order in which they were sent; it is reversible.
        begun
            Number of bundles that have begun and not ended.
        slots
            Number of calls that the pool can run at once.
        now
            Time in seconds of the monotonic clock.
        call_s
            Mean duration of the latest calls in seconds.
        """
        before = min(self._latest_begun, now - STUCK_S - STUCK_CALLS * call_s)
        overtaken = takewhile(lambda bundle: bundle.heard_at < before, waiting)
        if stuck := [b for b in islice(overtaken, slots) if not b.withdrawn]:
            return stuck
        free = slots - begun
        if free <= 0 or not waiting:
            self._free_since, self._patience_s = None, FREE_S
            return []
        if self._free_since is None:
            self._free_since = now
        if now - self._free_since < self._patience_s:
            return []
        self._free_since = now
        self._patience_s = min(2 * self._patience_s, LONGEST_S)
        latest_first: Iterable[SentBundle] = reversed(waiting)  # type: ignore[call-overload]
        return list(islice((b for b in latest_first if not b.withdrawn), free))

    @property
    def looks_again(self) -> bool:
        """Whether a slot is free while a bundle waits."""
        return self._free_since is not None
