"""Decision which waiting bundles to withdraw from busy workers while other slots are free.

The worker of a bundle is chosen when the bundle is sent, from the expected duration of tasks. If
tasks take longer, bundles wait at some workers while other workers are idle.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import islice, takewhile

from scalable.client.calls.sent_bundle import SentBundle

#: Seconds for which a slot has to be free before a bundle is withdrawn for it: a slot is also free
#: for a moment between two bundles.
FREE_S = 0.1
#: Upper limit of this time in seconds. The time doubles with each withdrawal, because the slot may
#: be in use by another client.
LONGEST_S = 5.0
#: A bundle that waits for so many seconds, and for as long as so many usual tasks take, is
#: withdrawn once a later one has started: it waits behind a task that is longer than others.
STUCK_S, STUCK_CALLS = 0.5, 10


class Withdrawals:
    """Choice of the bundles to withdraw for free slots."""

    def __init__(self) -> None:
        self._free_since: float | None = None
        self._patience_s = FREE_S
        self._latest_begun = 0.0

    def began(self, bundle: SentBundle) -> None:
        """Note when a bundle was sent that has started."""
        self._latest_begun = max(self._latest_begun, bundle.heard_at)

    def wanted(
        self,
        waiting: Collection[SentBundle],
        begun: int,
        slots: int,
        now: float,
        call_s: float = 0.0,
    ) -> list[SentBundle]:
        """Return the bundles to withdraw: stuck ones, or else the latest, one for each free slot.

        Called whenever a bundle starts or finishes: it must not search all bundles. ``waiting`` is
        in the order of sending, and reversible. ``now`` is in seconds of the monotonic clock, and
        ``call_s`` the mean duration of the latest tasks in seconds.
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
        """True if a slot is free while a bundle waits."""
        return self._free_since is not None
