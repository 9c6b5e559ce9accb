"""Takes away what a plan does not need. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from scalable.planning.frontier import SAME, Bounds, Workers
from scalable.planning.network import Network

#: Stages that may be looked at while counts are exchanged.
_LOOKS = 20_000


def trim(
    network: Network, bounds: Bounds, workers: Workers, within_s: float, least: Sequence[int]
) -> Workers:
    """The counts without what is not needed: no pool can shrink any more on its own.

    Parameters
    ----------
    network, bounds
        The work, and what counts cost.
    workers
        Counts that end in time.
    within_s
        In how many seconds.
    least
        Counts that are not gone below.
    """
    return _Trimming(network, bounds, within_s * (1 + SAME), least).shrink(workers)


def fewest(network: Network, bounds: Bounds, starts: Sequence[Workers], within_s: float) -> Workers:
    """The fewest workers that end in time, as far as a search from some starts finds.

    Each start is trimmed; and workers of one pool are exchanged for more of others while that
    helps. It looks at so much and no more: in small graphs at every pool and count.

    Parameters
    ----------
    network, bounds
        The work, and what counts cost.
    starts
        Counts that end in time, the most promising first.
    within_s
        In how many seconds.
    """
    trimming = _Trimming(network, bounds, within_s * (1 + SAME), bounds.least)
    trimming.looks = _LOOKS
    shrunk = [trimming.shrink(starts[0])]
    shrunk += [trimming.shrink(start) for start in starts[1:] if trimming.looks > 0]
    found = [trimming.exchange(counts) for counts in dict.fromkeys(shrunk)]
    return min(found, key=trimming.rate)


@dataclass
class _Trimming:
    network: Network
    bounds: Bounds
    limit: float
    least: Sequence[int]
    looks: int = 0

    def shrink(self, workers: Workers) -> Workers:
        """The cheaper of what is left when the dearest pools, or the cheapest, shrink first."""
        saving = [rate * count for rate, count in zip(self.bounds.rates, workers, strict=True)]
        dearest = sorted(range(len(workers)), key=lambda pool: -saving[pool])
        found = [self._shrunk(workers, order) for order in (dearest, dearest[::-1])]
        return min(found, key=self.rate)

    def exchange(self, workers: Workers) -> Workers:
        """Enlarge one pool by what makes it faster, if others can shrink by more than that."""
        improved = True
        while improved:
            improved = False
            for pool in range(len(workers)):
                for enlarged in self._enlarged(workers, pool):
                    if self.looks <= 0:
                        return workers
                    found = self.shrink(enlarged)
                    if self.rate(found) < self.rate(workers) - SAME:
                        workers, improved = found, True
                        break
        return workers

    def _enlarged(self, workers: Workers, pool: int) -> Iterator[Workers]:
        """The counts with more workers of one pool, as far as others could make up for it."""
        network, bounds = self.network, self.bounds
        own = [network.stages[i] for i in network.stages_of[pool]]
        rate = bounds.rates[pool]
        spare = self.rate(workers) - self.rate(self.least) - rate * workers[pool]
        most = min(bounds.most[pool], network.most_useful(pool))
        if bounds.total is not None:
            most = min(most, bounds.total - sum(workers) + workers[pool])
        if rate:
            most = min(most, workers[pool] + int((spare + rate * self.least[pool]) / rate))
        before = [network.stage_s(stage, workers[pool]) for stage in own]
        for count in range(workers[pool] + 1, most + 1):
            now = [network.stage_s(stage, count) for stage in own]
            if now != before:
                yield (*workers[:pool], count, *workers[pool + 1 :])
            before = now

    def _shrunk(self, workers: Workers, order: Sequence[int]) -> Workers:
        network = self.network
        counts, times = list(workers), network.times_s(workers)
        spare = sum(counts) - self.bounds.least_total
        for pool in order:
            high, own = counts[pool], network.stages_of[pool]
            low, step = max(self.least[pool], high - max(0, spare)), 1
            kept = [times[i] for i in own]
            while low < high:  # fewer are never faster: try a few less, then in the middle
                tried = max(low, high - step) if step else (low + high) // 2
                counts[pool] = tried
                for i in own:
                    times[i] = network.stage_s(network.stages[i], tried)
                self.looks -= len(times)
                if network.compose(counts, times)[0] <= self.limit:
                    high, step, kept = tried, 4 * step, [times[i] for i in own]
                else:
                    low, step = tried + 1, 0
            spare -= workers[pool] - high
            counts[pool] = high
            for i, time_s in zip(own, kept, strict=True):
                times[i] = time_s
        return tuple(counts)

    def rate(self, workers: Sequence[int]) -> float:
        return sum(rate * count for rate, count in zip(self.bounds.rates, workers, strict=True))
