"""Bundles that wait behind others while a slot is free are taken back, and sent again.

Which worker gets a bundle is decided when it is sent, by what calls are expected to take. Where
they take longer, some workers have bundles waiting and others have nothing to do.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from scalable.client.calls.losses import SentBundle

#: For so many seconds a slot has to be free before a bundle is taken back for it: between two
#: bundles it is free for a moment, too.
FREE_S = 0.025
#: What seems free may be taken by another client: the next time it is waited for twice as long, up
#: to so many seconds.
LONGEST_S = 5.0


class Withdrawals:
    """Finds bundles to take back for slots that are free."""

    def __init__(self) -> None:
        self._free_since: float | None = None
        self._patience_s = FREE_S

    def wanted(self, bundles: Iterable[SentBundle], slots: int, now: float) -> list[SentBundle]:
        """Bundles to take back: no more than slots are free, those sent last first.

        Parameters
        ----------
        bundles
            Those that have not ended, in the order in which they were sent.
        slots
            That the pool has.
        now
            Seconds of a clock.
        """
        waiting = [bundle for bundle in bundles if not bundle.begun]
        free = slots - sum(bundle.begun for bundle in bundles)
        if free <= 0 or not waiting:
            self._free_since, self._patience_s = None, FREE_S
            return []
        if self._free_since is None:
            self._free_since = now
        if now - self._free_since < self._patience_s:
            return []
        self._free_since = now
        self._patience_s = min(2 * self._patience_s, LONGEST_S)
        return list(islice((b for b in reversed(waiting) if not b.recalled), free))

    @property
    def looks_again(self) -> bool:
        """Whether a slot is free that a waiting bundle might have."""
        return self._free_since is not None
