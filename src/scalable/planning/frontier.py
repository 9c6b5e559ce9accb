"""Search for worker counts, from the cheapest to the fastest. Does no I/O.

It starts with the minimum counts. Each step enlarges the pools that save most time per cost. Counts
never shrink.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from scalable.planning.network import Network

#: Number of counts, in all pools together, that are tried one by one. Above them, each tried count
#: is the previous count times a ratio.
_EACH_COUNT, _RATIO = 500, 1.15
#: Tolerance with which floating-point numbers are compared.
SAME = 1e-9

Workers = tuple[int, ...]


@dataclass(frozen=True)
class CountBounds:
    """Limits of worker counts."""

    least: Sequence[int]
    most: Sequence[int]
    #: Maximum of all pools together.
    total: int | None
    #: Cost of one worker of each pool per second.
    rates: Sequence[float]
    #: Minimum of all pools together.
    least_total: int = 0


@dataclass(frozen=True)
class _Step:
    cost: float
    saved: float
    #: (position of the pool, index of its new candidate count) for each enlarged pool.
    moves: tuple[tuple[int, int], ...]


def trace(network: Network, bounds: CountBounds) -> list[Workers]:
    """Return ascending worker counts, from the minimum to counts where more workers do not help."""
    ladder = [_candidates(network, bounds, pool) for pool in range(len(network.tags))]
    steps = _layer_steps if network.layered else _chain_steps
    at = [0] * len(ladder)
    counts = [rungs[0] for rungs in ladder]
    room = math.inf if bounds.total is None else bounds.total - sum(counts)
    found = [tuple(counts)]
    full: set[int] = set()  # pools with a step that did not fit; their later steps assume it
    for step in steps(network, bounds, ladder):
        more = sum(ladder[p][i] - counts[p] for p, i in step.moves)
        if more > room or not full.isdisjoint(p for p, _ in step.moves):
            full.update(p for p, _ in step.moves)
            continue
        for pool, index in step.moves:
            at[pool], counts[pool] = index, ladder[pool][index]
        room -= more
        found.append(tuple(counts))
    found += _fill(network, bounds, found[-1])
    enough = [workers for workers in found if sum(workers) >= bounds.least_total]
    return enough or [_raised(bounds, found[-1])]


def _candidates(network: Network, bounds: CountBounds, pool: int) -> list[int]:
    """Return the ascending counts of a pool to try. Each shortens the pool's stages."""
    least = bounds.least[pool]
    most = min(bounds.most[pool], max(least, network.most_useful(pool)))
    if bounds.total is not None:
        most = max(least, min(most, bounds.total - sum(bounds.least) + least))
    stages = [network.stages[i] for i in network.stages_of[pool]]
    slots = network.slots[pool]
    each = max(1, _EACH_COUNT // len(network.tags))
    tried = list(range(least, min(most, least + each) + 1))
    while tried[-1] < most:
        tried.append(min(most, max(tried[-1] + 1, int(tried[-1] * _RATIO))))
    found: list[int] = []
    for count in tried:
        if found and stages and all(stage.even and stage.calls for stage in stages):
            # A smaller count may run the tasks in the same number of waves.
            count = max(  # noqa: PLW2901
                math.ceil(s.calls / (math.ceil(s.calls / (count * slots)) * slots)) for s in stages
            )
        if not found or (count > found[-1] and _faster(network, pool, found[-1], count)):
            found.append(count)
    return found


def _faster(network: Network, pool: int, fewer: int, more: int) -> bool:
    slots = network.slots[pool]
    stages = [network.stages[i] for i in network.stages_of[pool]]
    return any(s.time_s(more * slots) < s.time_s(fewer * slots) for s in stages) or (
        len(stages) > 1 and fewer < network.most_useful(pool)
    )


def _times(network: Network, ladder: Sequence[Sequence[int]]) -> list[list[float]]:
    return [
        [stage.time_s(count * network.slots[stage.pool]) for count in ladder[stage.pool]]
        for stage in network.stages
    ]


# Layered graphs -----------------------------------------------------------------------------------
# Each stage waits for all stages of the layer before, so a run lasts as long as the sum of its
# layers. Layers without common pools are independent. Their steps are ordered along the lower
# convex hull of each layer (Fox 1966).


def _layer_steps(
    network: Network, bounds: CountBounds, ladder: Sequence[Sequence[int]]
) -> Iterator[_Step]:
    """Return all blocks' steps by time saved per cost. The steps of a block stay in their order."""
    times = _times(network, ladder)
    ranked: list[tuple[float, int, int, _Step]] = []
    for number, block in enumerate(_blocks(network)):
        if len(block) == 1:
            steps = list(_layer_alone(network, bounds, ladder, times, block[0]))
        else:
            steps = list(_SharedLayers(network, bounds, ladder, times, block).steps())
        for position, (slope, step) in enumerate(_along_hull(steps)):
            ranked.append((-slope, number, position, step))
    ranked.sort(key=lambda entry: entry[:3])
    return (step for *_, step in ranked)


def _blocks(network: Network) -> list[list[list[int]]]:
    """Return blocks of layers. Layers that share a pool are in the same block."""
    blocks: list[tuple[set[int], list[list[int]]]] = []
    for layer in network.layers:
        pools = {network.stages[i].pool for i in layer}
        joined = [layer]
        apart = []
        for others, layers in blocks:
            if others.isdisjoint(pools):
                apart.append((others, layers))
            else:
                pools |= others
                joined = layers + joined
        blocks = [*apart, (pools, joined)]
    return [layers for _, layers in blocks]


def _layer_alone(
    network: Network,
    bounds: CountBounds,
    ladder: Sequence[Sequence[int]],
    times: Sequence[Sequence[float]],
    layer: Sequence[int],
) -> Iterator[_Step]:
    """Yield steps that each enlarge the slowest pools of a layer without shared pools."""
    waiting = [(-times[i][0], i, 0) for i in layer]
    heapq.heapify(waiting)
    while waiting:
        top = -waiting[0][0]
        cost, moves = 0.0, []
        while -waiting[0][0] == top:
            _, i, index = waiting[0]
            pool, own = network.stages[i].pool, times[i]
            later = _first_below(own, index, top)
            if later is None:
                return
            cost += bounds.rates[pool] * (ladder[pool][later] - ladder[pool][index])
            moves.append((pool, later))
            heapq.heapreplace(waiting, (-own[later], i, later))
        yield _Step(cost, top + waiting[0][0], tuple(moves))


class _SharedLayers:
    """Layers that share pools, so a larger pool shortens several of them."""

    def __init__(
        self,
        network: Network,
        bounds: CountBounds,
        ladder: Sequence[Sequence[int]],
        times: Sequence[Sequence[float]],
        block: Sequence[Sequence[int]],
    ) -> None:
        self._bounds, self._ladder, self._times, self._block = bounds, ladder, times, block
        self._pool_of = [stage.pool for stage in network.stages]
        self._at = {self._pool_of[i]: 0 for layer in block for i in layer}
        self._layers_of: dict[int, list[int]] = {pool: [] for pool in self._at}
        for number, layer in enumerate(block):
            for i in layer:
                self._layers_of[self._pool_of[i]].append(number)
        self._tops = [max(times[i][0] for i in layer) for layer in block]

    def steps(self) -> Iterator[_Step]:
        """Yield steps, each for the layer that saves most time per cost."""
        known = {number: self._shorten(number) for number in range(len(self._block))}
        while True:
            able = [step for step in known.values() if step is not None and step.saved > 0]
            if not able:
                return
            best = max(able, key=lambda step: step.saved / (step.cost or SAME))
            self._at.update(best.moves)
            changed = self._layers({pool for pool, _ in best.moves})
            for number in changed:
                self._tops[number] = self._top(number, self._at)
            # The time that a step saves depends on all layers in which its pools have stages.
            for number in self._layers({self._pool_of[i] for n in changed for i in self._block[n]}):
                known[number] = self._shorten(number)
            yield best

    def _layers(self, pools: Collection[int]) -> set[int]:
        return {number for pool in pools for number in self._layers_of[pool]}

    def _top(self, number: int, at: Mapping[int, int]) -> float:
        return max(self._times[i][at[self._pool_of[i]]] for i in self._block[number])

    def _shorten(self, number: int) -> _Step | None:
        """Return the step that shortens a layer's longest stages, or None if there is none."""
        moves: dict[int, int] = {}
        for i in self._block[number]:
            pool, own = self._pool_of[i], self._times[i]
            if own[self._at[pool]] < self._tops[number]:
                continue
            later = _first_below(own, self._at[pool], self._tops[number])
            if later is None:
                return None
            moves[pool] = later
        after = self._at | moves
        more = {pool: self._ladder[pool][later] for pool, later in moves.items()}
        cost = sum(
            self._bounds.rates[pool] * (count - self._ladder[pool][self._at[pool]])
            for pool, count in more.items()
        )
        saved = sum(self._tops[n] - self._top(n, after) for n in self._layers(moves))
        return _Step(cost, saved, tuple(moves.items()))


def _first_below(times: Sequence[float], index: int, top: float) -> int | None:
    return next((i for i in range(index + 1, len(times)) if times[i] < top), None)


def _along_hull(steps: Sequence[_Step]) -> Iterator[tuple[float, _Step]]:
    """Yield (time saved per cost in its segment of the lower convex hull, step) for each step."""
    segments: list[tuple[float, float, list[_Step]]] = []
    for step in steps:
        cost, saved, members = step.cost, step.saved, [step]
        while segments and saved * segments[-1][0] >= segments[-1][1] * cost:
            earlier = segments.pop()
            cost, saved, members = cost + earlier[0], saved + earlier[1], earlier[2] + members
        segments.append((cost, saved, members))
    for cost, saved, members in segments:
        for step in members:
            yield saved / (cost or SAME), step


# Any graph ----------------------------------------------------------------------------------------


def _chain_steps(
    network: Network, bounds: CountBounds, ladder: Sequence[Sequence[int]]
) -> Iterator[_Step]:
    """Yield steps. Each enlarges that pool of the longest chain which saves most time per cost."""
    at = [0] * len(ladder)
    times = _times(network, ladder)
    while True:
        now = [own[at[stage.pool]] for own, stage in zip(times, network.stages, strict=True)]
        counts = [rungs[i] for rungs, i in zip(ladder, at, strict=True)]
        _, ends, binding = network.compose(counts, now)
        chain = (
            network.stages_of[binding]
            if binding is not None
            else _longest_chain(network, now, ends)
        )
        saved: dict[int, float] = {}
        for i in chain:
            pool = network.stages[i].pool
            if at[pool] + 1 < len(ladder[pool]):
                less = now[i] - times[i][at[pool] + 1]
                if binding is not None:
                    slots = network.slots[pool]
                    work = network.stages[i].work_s / slots
                    less = work / counts[pool] - work / ladder[pool][at[pool] + 1]
                saved[pool] = saved.get(pool, 0.0) + less
        costs = {p: bounds.rates[p] * (ladder[p][at[p] + 1] - counts[p]) for p in saved}
        best = max(saved, key=lambda p: saved[p] / (costs[p] or SAME), default=None)
        if best is None:
            return
        at[best] += 1
        yield _Step(costs[best], saved[best], ((best, at[best]),))


def _longest_chain(network: Network, times: Sequence[float], ends: Sequence[float]) -> list[int]:
    """Return the stages of the longest chain, starting with the last stage."""
    if not ends:
        return []
    at: int | None = max(range(len(ends)), key=ends.__getitem__)
    chain = []
    while at is not None:
        chain.append(at)
        begin = ends[at] - times[at]
        before = network.stages[at].before
        held = [i for i in before if ends[i] >= begin - SAME * max(1.0, abs(begin))]
        at = max(held, key=ends.__getitem__, default=None)
    return chain


# Between candidates -------------------------------------------------------------------------------


def _fill(network: Network, bounds: CountBounds, workers: Workers) -> Iterator[Workers]:
    """Yield counts that use up the rest of the total after the last possible step."""
    if bounds.total is None:
        return
    counts = list(workers)
    while (room := bounds.total - sum(counts)) > 0:
        now = network.finish_s(counts)
        best: tuple[float, int, int] | None = None
        for pool, count in enumerate(counts):
            most = min(bounds.most[pool], count + room, network.most_useful(pool))
            for more in dict.fromkeys((count + 1, count + max(1, room // 2), most)):
                if not count < more <= most:
                    continue
                tried = network.finish_s([*counts[:pool], more, *counts[pool + 1 :]])
                rate = (now - tried) / (more - count)
                if tried < now and (best is None or rate > best[0]):
                    best = rate, pool, more
        if best is None:
            return
        counts[best[1]] = best[2]
        yield tuple(counts)


def _raised(bounds: CountBounds, workers: Workers) -> Workers:
    """Return counts raised to the minimum of all pools together, which does not shorten the run."""
    counts = list(workers)
    for pool, most in enumerate(bounds.most):
        counts[pool] += min(most - counts[pool], bounds.least_total - sum(counts))
    return tuple(counts)
