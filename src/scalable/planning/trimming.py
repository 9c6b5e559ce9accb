"""Removal of workers that a run does not need to meet its time limit. No I/O."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from scalable.planning.frontier import SAME, Bounds, Workers
from scalable.planning.network import Network

#: Number of computed stage durations after which a search stops.
_LOOKS = 20_000


def trim(
    network: Network, bounds: Bounds, workers: Workers, within_s: float, least: Sequence[int]
) -> Workers:
    """Shrink counts until no single pool can shrink further within the time limit."""
    return _Trimming(network, bounds, within_s * (1 + SAME), least).shrink(workers)


def fewest(network: Network, bounds: Bounds, starts: Sequence[Workers], within_s: float) -> Workers:
    """Return the cheapest counts within a time limit that a bounded search finds.

    It shrinks the pools of each start, the most promising start first. Then it exchanges workers
    between pools while this lowers the cost. In small graphs it tries every useful count.
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
        """Return the cheaper result of shrinking the dearest or the cheapest pools first."""
        saving = [rate * count for rate, count in zip(self.bounds.rates, workers, strict=True)]
        dearest = sorted(range(len(workers)), key=lambda pool: -saving[pool])
        found = [self._shrunk(workers, order) for order in (dearest, dearest[::-1])]
        return min(found, key=self.rate)

    def exchange(self, workers: Workers) -> Workers:
        """Enlarge one pool at a time if the others can then shrink by more than it costs."""
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
        """Yield larger counts of one pool, up to the cost that the others could save."""
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
            while low < high:  # fewer workers are never faster: gallop, then bisect
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
