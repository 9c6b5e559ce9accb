"""How many calls make a bundle, and how many bundles are on their way."""

from __future__ import annotations

#: A bundle is to take so long: long against what sending one costs, short against a wait.
BUNDLE_S = 0.05
LARGEST_BUNDLE = 4096
#: A bundle is to have no more bytes: one message.
LARGEST_BYTES = 16_000_000
#: Bundles for each slot that may be on their way or run: the next one is there when one ends.
AHEAD = 2


class BundleSizing:
    """How long calls take, and so how many make a bundle."""

    def __init__(self) -> None:
        self.mean_s: float | None = None
        self._bytes_per_call = 0.0

    def sent(self, calls: int, nbytes: int) -> None:
        """A bundle of so many calls had so many bytes."""
        self._bytes_per_call = max(nbytes / calls, 0.5 * self._bytes_per_call)

    def observe(self, calls: int, seconds: float) -> None:
        """Calls have taken so long together."""
        if calls:
            latest = seconds / calls
            self.mean_s = latest if self.mean_s is None else 0.25 * self.mean_s + 0.75 * latest

    def at_least(self, seconds: float) -> None:
        """A call has been running for so long."""
        self.mean_s = max(self.mean_s or 0.0, seconds)

    def size(self, backlog: int, slots: int) -> int:
        """Calls of the next bundle: a share of the backlog, and not too long."""
        if self.mean_s is None:
            return 1
        quick = int(BUNDLE_S / max(self.mean_s, 1e-7))
        light = int(LARGEST_BYTES / max(self._bytes_per_call, 1.0))
        return max(1, min(quick, light, backlog // (2 * slots), LARGEST_BUNDLE))
