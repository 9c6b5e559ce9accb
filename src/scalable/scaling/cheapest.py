"""Division of the wanted workers of one pool among places, at the lowest cost. Pure; no I/O.

A place is one worker manager with its terms: price, billing minimum, start-up and limit. Places are
filled in the order of the cost of a worker until the known work ends, and drained in the reverse
order. If there is a deadline, workers are requested from a dearer place that delivers them sooner,
as many as are needed for the work to end in time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple

from scalable.scaling.places import Division, Forecast, Place, Request

#: Part of the cost of a worker that has to be saved by replacing it. Replacing costs a start, and a
#: small saving may be an error of the forecast.
HYSTERESIS = 0.1
#: Largest part of the wanted workers that are replaced at one time: the others keep working until
#: the cheaper place has delivered.
MOVED_PART = 0.25
#: Relative difference of costs that may be an error of rounding.
TINY = 1e-9
#: Ratio between a compared number of workers and the next one.
STEP_RATIO = 1.2
#: Part of the time until the deadline that is kept as a reserve for errors of the forecast.
RESERVE = 0.1


def divide(request: Request) -> Division:
    """Return how many workers each place gets.

    The shares sum up to the wanted number, or to what all usable places can give if that is less;
    a trial at a place that is not usable comes on top. If there is a deadline, and the request has
    a least number of workers, numbers from there to the wanted one are compared as well: the one
    that is expected to cost least of those with which the work ends in time is taken, or of those
    with which it ends hardly later than with more workers, if it is late anyhow.

    Running workers are kept, the cheapest first. Missing workers are requested from the cheapest
    place with room. A running or requested worker is replaced by a cheaper one if that saves more
    than :data:`HYSTERESIS`, at most :data:`MOVED_PART` of the running workers at one time. The
    result is not expected to cost more than a division by priorities that is in time as well.

    Parameters
    ----------
    request
        Wanted number, places, known work, and time left.
    """
    split = _fewest(request, _divided(request))
    shares = split.shares()
    for place in request.places:
        if place.trial and not place.usable and _room(place, shares[place.manager]):
            shares[place.manager] += 1
    spared = request.wanted - split.request.wanted
    return Division(
        shares,
        {
            m: f"{why}{_held_back(request.wanted, spared)}"
            for m, why in split.reasons(shares).items()
        },
        split.finish_s(split.counts),
        split.forecast.cost(split.counts),
        spared,
    )


def _held_back(wanted: int, spared: int) -> str:
    if not spared:
        return ""
    return (
        f"; {spared} of {wanted} wanted workers are held back, as more would hardly end it sooner"
    )


def _divided(request: Request) -> _Split:
    """Return the division of exactly the wanted number, as far as places have room."""
    split = _Split(request)
    split.keep_running()
    split.fill()
    split.replace_pending()
    split.replace_running()
    split.meet_deadline()
    split.prefer_priorities()
    return split


def _fewest(request: Request, whole: _Split) -> _Split:
    """Return the cheapest division in time, of the wanted number of workers or fewer.

    The number that was requested before is kept unless another one saves enough: otherwise a worker
    would be cancelled at one decision and requested again at the next one.
    """
    work = request.work
    if request.left_s is None or request.least is None or work is None or work.outlived:
        return whole
    running = sum(place.running for place in request.places)
    asked = running + sum(len(place.pending) for place in request.places)
    low = min(request.wanted, max(request.least, running, 1))
    found: list[_Candidate] = []
    for count in _counts(low, request.wanted, asked):
        split = whole if count == request.wanted else _divided(replace(request, wanted=count))
        cost, finish = split.forecast.cost(split.counts), split.finish_s(split.counts)
        if cost is None or finish is None:
            continue
        if count == min(asked, request.wanted):
            cost /= 1 + HYSTERESIS
        found.append(_Candidate(cost, count, finish, split))
    if not found:
        return whole
    left_s = request.left_s
    # Fewer workers leave less room for errors of the forecast.
    limits = [(1 - 2 * RESERVE) * left_s, (1 - RESERVE) * left_s, left_s]
    soonest = min(one.finish_s for one in found)
    limits.append(soonest * (1 + 2 * RESERVE))
    able = next(able for s in limits if (able := [one for one in found if one.finish_s <= s]))
    return min(able, key=lambda one: one[:2]).split


class _Candidate(NamedTuple):
    """A division: expected cost, number of workers, and seconds until the work ends."""

    cost: float
    workers: int
    finish_s: float
    split: _Split


def _counts(low: int, high: int, asked: int) -> list[int]:
    """Return worker counts from ``low`` to ``high`` at growing distances, and the one asked."""
    counts, count = {low, high, max(low, min(high, asked))}, low
    while (count := max(count + 1, math.floor(STEP_RATIO * count))) < high:
        counts.add(count)
    return sorted(counts)


def _room(place: Place, share: int) -> bool:
    return place.limit is None or share < place.limit


class _Split:
    """Workers of each place while :func:`divide` computes them; ``counts`` is place -> number."""

    def __init__(self, request: Request) -> None:
        self.request = request
        use_s = request.use_s
        self.use_s = use_s
        self.forecast = Forecast(request)
        #: Places in the order in which they are filled with new workers.
        self.order = sorted(request.places, key=lambda p: (p.cost(use_s), *p.rank))
        self.counts: dict[str, int] = {p.manager: 0 for p in self.order}
        #: Manager -> number of workers beyond its own that the deadline has moved to it.
        self.hurried: dict[str, int] = {}
        self.moved: dict[str, int] = {}

    def prefer_priorities(self) -> None:
        """Take the division by priorities if it is expected to cost less, and is not too late."""
        plain = self._by_priority()
        own, other = self.forecast.cost(self.counts), self.forecast.cost(plain)
        if own is None or other is None or not other < own - TINY * abs(own):
            return
        if self._in_time(plain, RESERVE) or not self._sooner_than(plain):
            self.counts, self.hurried, self.moved = plain, {}, {}

    def _by_priority(self) -> dict[str, int]:
        """Return the workers of each place if the ones with the lowest number are filled first."""
        order = sorted(self.order, key=lambda place: (place.priority, place.manager))
        counts, left = dict.fromkeys(self.counts, 0), self.request.wanted
        for kept in (True, False):
            for place in order:
                most = self.most(place)
                if kept:
                    most = min(most, place.running + len(place.pending))
                more = max(0, min(left, most - counts[place.manager]))
                counts[place.manager] += more
                left -= more
        return counts

    def most(self, place: Place) -> int:
        """Return the maximum number of workers of a place."""
        most = self.request.wanted if place.usable else min(place.running, self.request.wanted)
        return most if place.limit is None else min(most, place.limit)

    def left(self) -> int:
        return self.request.wanted - sum(self.counts.values())

    def keep_running(self) -> None:
        """Keep running workers, the cheapest first: the dearest ones are drained."""
        for place in sorted(self.order, key=lambda p: (p.cost(self.use_s, running=True), *p.rank)):
            kept = min(place.running, self.left(), self.most(place))
            self.counts[place.manager] = max(0, kept)

    def fill(self) -> None:
        """Request the missing workers, first those that are on their way already."""
        for pending in (True, False):
            for place in self.order:
                most = self.most(place)
                if pending:
                    most = min(most, place.running + len(place.pending))
                more = min(self.left(), most - self.counts[place.manager])
                self.counts[place.manager] += max(0, more)

    def replace_pending(self) -> None:
        """Request workers that have not connected from a cheaper place instead."""
        self._replace(lambda place: max(0, self.counts[place.manager] - place.running), None)

    def replace_running(self) -> None:
        """Replace running workers by cheaper ones, few at a time."""
        at_once = max(1, math.floor(MOVED_PART * self.request.wanted))
        self._replace(lambda place: min(place.running, self.counts[place.manager]), at_once)

    def _replace(self, movable: Callable[[Place], int], at_once: int | None) -> None:
        """Move workers from the dearest places to the cheapest that save enough.

        Parameters
        ----------
        movable
            Function that takes a place and returns the number of its workers that may be moved.
        at_once
            Maximum number of requested workers in all; None if running workers are not replaced.
        """
        for cheap in self.order:
            for dear in reversed(self.order):
                room = self.most(cheap) - self.counts[cheap.manager]
                count = min(room, movable(dear))
                if at_once is not None:
                    count = min(count, at_once - self.unconnected())
                if count <= 0 or not self._saves(cheap, dear, running=at_once is not None):
                    continue
                if at_once is not None and not self._of_use(cheap):
                    continue
                if self._in_time_after(cheap, dear, count):
                    self._move(cheap, dear, count)
                    self.moved[cheap.manager] = self.moved.get(cheap.manager, 0) + count

    def unconnected(self) -> int:
        """Return the number of requested workers that are not connected."""
        return sum(max(0, self.counts[p.manager] - p.running) for p in self.order)

    def _saves(self, cheap: Place, dear: Place, *, running: bool) -> bool:
        known = cheap.running + len(cheap.pending) > self.counts[cheap.manager]
        expected = cheap.cost(self.use_s) * (1 if known else 1 + HYSTERESIS)
        return expected < dear.cost(self.use_s, running=running) and cheap is not dear

    def _in_time_after(self, cheap: Place, dear: Place, count: int) -> bool:
        if self.request.left_s is None:
            return True
        after = dict(self.counts)
        after[dear.manager] -= count
        after[cheap.manager] += count
        return self._in_time(after, 2 * RESERVE)

    def _of_use(self, place: Place) -> bool:
        """Return whether a worker that is requested now connects before the work has ended."""
        work, finish = self.request.work, self.finish_s(self.counts)
        if work is None or work.outlived or finish is None:
            return True
        return place.startup_s < finish

    def _move(self, to: Place, source: Place, count: int) -> None:
        self.counts[source.manager] -= count
        self.counts[to.manager] += count

    # Deadline -------------------------------------------------------------------------------------

    def finish_s(self, counts: Mapping[str, int]) -> float | None:
        """Return the expected seconds until the known work ends; None if it is unknown."""
        return self.forecast.finish_s(counts)

    def _in_time(self, counts: Mapping[str, int], reserve: float) -> bool:
        left_s = self.request.left_s
        if left_s is None:
            return True
        finish = self.finish_s(counts)
        if finish is None:  # unknown work: at least the workers have to connect before
            steps = self.forecast.capacity(counts).steps
            finish = steps[-1][0] if steps else 0.0
        return finish <= (1 - reserve) * left_s

    def meet_deadline(self) -> None:
        """Move workers from places that deliver late to dearer ones that deliver sooner."""
        if self._in_time(self.counts, RESERVE):
            return
        before = dict(self.counts)
        for soon in self.order:
            for late in sorted(self.order, key=self._last_s, reverse=True):
                if soon.new_s >= self._last_s(late) or soon is late:
                    continue
                room = self.most(soon) - self.counts[soon.manager]
                waiting = self.counts[late.manager] - late.running
                most = min(room, waiting)
                if most > 0:
                    self._hurry(soon, late, most)
                if self._in_time(self.counts, RESERVE):
                    return
        if not self._sooner_than(before):
            self.counts, self.hurried = before, {}  # it is as late anyhow: cost decides

    def _sooner_than(self, other: Mapping[str, int]) -> bool:
        """Return whether the work ends sooner than with another division, as far as it matters."""
        own_s, other_s = self.finish_s(self.counts), self.finish_s(other)
        if own_s is None or other_s is None or self.request.left_s is None:
            return own_s is None
        return other_s - own_s >= RESERVE * self.request.left_s

    def _last_s(self, place: Place) -> float:
        """Return the seconds until the last requested worker of a place connects."""
        count = self.counts[place.manager]
        if count > place.running + len(place.pending):
            return place.new_s
        waiting = place.pending[: max(0, count - place.running)]
        return max((place.remaining_s(since) for since in waiting), default=0.0)

    def _hurry(self, soon: Place, late: Place, most: int) -> None:
        """Move the fewest workers, at most ``most``, with which the work ends in time."""

        def moved(count: int) -> dict[str, int]:
            after = dict(self.counts)
            after[late.manager] -= count
            after[soon.manager] += count
            return after

        low, high = 1, most
        while low < high:
            middle = (low + high) // 2
            if self._in_time(moved(middle), RESERVE):
                high = middle
            else:
                low = middle + 1
        self.counts = moved(low)
        self.hurried[soon.manager] = self.hurried.get(soon.manager, 0) + low

    # Reasons --------------------------------------------------------------------------------------

    def shares(self) -> dict[str, int]:
        return {place.manager: self.counts[place.manager] for place in self.request.places}

    def reasons(self, shares: Mapping[str, int]) -> dict[str, str]:
        """Return manager -> reason for its share, as a sentence without a full stop."""
        return {p.manager: self._reason(p, shares) for p in self.request.places}

    def _reason(self, place: Place, shares: Mapping[str, int]) -> str:
        share = shares[place.manager]
        if not place.usable:
            trial = "; one worker is requested as a trial" if share > place.running else ""
            return f"keeps {min(share, place.running)} of {place.running}: {place.why}{trial}"
        price = f"{place.price.per_hour:.4g} an hour, {_seconds(place.startup_s)} to start"
        return f"{price}: {self._why(place, share, shares)}"

    def _why(self, place: Place, share: int, shares: Mapping[str, int]) -> str:
        """Return why a usable place gets its share."""
        if not self.request.wanted:
            return "no worker is wanted"
        if not share:
            others = ", ".join(p.manager for p in self.order if shares[p.manager])
            return f"{others} has room for all" if others else "its limit is 0"
        if self.hurried.get(place.manager):
            return "a cheaper place would miss the deadline"
        return self._why_filled(place, shares)

    def _why_filled(self, place: Place, shares: Mapping[str, int]) -> str:
        """Return why a place gets workers for another reason than the deadline."""
        if self.moved.get(place.manager):
            return "it replaces dearer workers as it delivers"
        cheaper = [p for p in self.order[: self.order.index(place)] if p.usable]
        full = [p.manager for p in cheaper if shares[p.manager] >= self.most(p)]
        if len(full) < len(cheaper):
            return "its workers are kept, as cheaper ones would come too late or save too little"
        if full:
            return f"the cheapest with room, as {', '.join(full)} can take no more"
        return "the cheapest that delivers"


def _seconds(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds >= 1 else f"{seconds:.1f} s"
