"""Division of the wanted workers of one pool among places, at the lowest cost. Pure; no I/O.

A place is one worker manager with its terms: price, billing minimum, start-up and limit. Places are
filled in the order of the cost of a worker until the known work ends, and drained in the reverse
order. If there is a deadline, workers are requested from a dearer place that delivers them sooner,
as many as are needed for the work to end in time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from scalable.scaling.capacity import Capacity, finish_s
from scalable.scaling.tiers import UnitPrice, WaitingWork

#: Assumed seconds for which a worker is used, if the length of the work is unknown or the worker
#: outlives the known work.
UNKNOWN_USE_S = 3600.0
#: Part of the cost of a worker that has to be saved by replacing it. Replacing costs a start, and a
#: small saving may be an error of the forecast.
HYSTERESIS = 0.1
#: Largest part of the wanted workers that are replaced at one time: the others keep working until
#: the cheaper place has delivered.
MOVED_PART = 0.25
#: Part of the time until the deadline that is kept as a reserve for errors of the forecast.
RESERVE = 0.1
#: Expected further wait of a worker that is overdue, as a multiple of its wait until now.
OVERDUE = 0.5


@dataclass(frozen=True)
class Place:
    """State and terms of one manager, for the workers of one pool. All times are in seconds.

    Attributes
    ----------
    manager
        Id of the manager.
    price
        Price of one worker.
    priority
        Rank of the manager; it decides among places of equal cost and equal start-up time.
    limit
        Maximum number of workers; None for no maximum.
    running
        Number of connected workers.
    pending
        Time since the request of each worker that has not connected, the longest wait first.
    startup_s
        Expected time from a request until the worker connects.
    late_s
        Time within which nearly all workers connect; deadlines are checked with it.
    billed_startup_s
        Part of the start-up time that is billed.
    usable
        Whether workers may be requested. If False, the place keeps its running workers.
    trial
        Whether one worker is requested from a place that is not usable, beyond the wanted ones.
    why
        Reason why the place is not usable.
    """

    manager: str
    price: UnitPrice = field(default_factory=UnitPrice)
    priority: int = 0
    limit: int | None = None
    running: int = 0
    pending: tuple[float, ...] = ()
    startup_s: float = 0.0
    late_s: float = 0.0
    billed_startup_s: float = 0.0
    usable: bool = True
    trial: bool = False
    why: str = ""

    @property
    def rank(self) -> tuple[float, int, str]:
        """Order among places of equal cost: the one that delivers sooner comes first."""
        return self.startup_s, self.priority, self.manager

    def cost(self, use_s: float, *, running: bool = False) -> float:
        """Return the cost of one worker, new or running, that is used for ``use_s`` seconds."""
        if running:
            return self.price.per_hour / 3600 * use_s
        return self.price.per_hour / 3600 * billed_s(self.price, use_s + self.billed_startup_s)

    def remaining_s(self, since_s: float) -> float:
        """Return the seconds until a worker should have connected that was requested before."""
        return OVERDUE * since_s if since_s > self.late_s else self.late_s - since_s

    @property
    def new_s(self) -> float:
        """Seconds until a worker that is requested now should have connected.

        A worker that still waits shows that the place takes at least as long at present.
        """
        overdue = [since for since in self.pending[:1] if since > self.late_s]
        return max([self.late_s, *((1 + OVERDUE) * since for since in overdue)])


@dataclass(frozen=True)
class Request:
    """The input of :func:`divide`.

    Attributes
    ----------
    wanted
        Number of wanted workers.
    places
        The managers that can start them.
    work
        Known work of the pool; None if it is unknown.
    left_s
        Seconds until the deadline; None without a deadline.
    """

    wanted: int
    places: tuple[Place, ...] = ()
    work: WaitingWork | None = None
    left_s: float | None = None

    @property
    def use_s(self) -> float:
        """Seconds for which one worker is expected to be used."""
        if self.work is None or not self.wanted:
            return UNKNOWN_USE_S
        longest = max((portion.longest_s for portion in self.work.portions), default=0.0)
        use_s = max(self.work.total_s / self.wanted, longest, 1e-3) + self.work.rest_s
        return max(use_s, UNKNOWN_USE_S) if self.work.outlived else use_s


@dataclass(frozen=True)
class Division:
    """The result of :func:`divide`.

    Attributes
    ----------
    shares
        Manager -> number of workers to request from it in all.
    reasons
        Manager -> reason for its share, as a sentence.
    finish_s
        Expected seconds until the known work ends; None if the work is unknown.
    """

    shares: Mapping[str, int] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)
    finish_s: float | None = None


def billed_s(price: UnitPrice, seconds: float) -> float:
    """Return the billed seconds of a worker that exists for some seconds."""
    if price.granularity_s > 0:
        seconds = math.ceil(seconds / price.granularity_s - 1e-9) * price.granularity_s
    return max(seconds, price.minimum_s)


def divide(request: Request) -> Division:
    """Return how many workers each place gets.

    The shares sum up to the wanted number, or to what all usable places can give if that is less;
    a trial at a place that is not usable comes on top.

    Running workers are kept, the cheapest first. Missing workers are requested from the cheapest
    place with room. A running or requested worker is replaced by a cheaper one if that saves more
    than :data:`HYSTERESIS`, at most :data:`MOVED_PART` of the running workers at one time.

    Parameters
    ----------
    request
        Wanted number, places, known work, and time left.
    """
    split = _Split(request)
    split.keep_running()
    split.fill()
    split.replace_pending()
    split.replace_running()
    split.meet_deadline()
    shares = split.shares()
    for place in request.places:
        if place.trial and not place.usable and _room(place, shares[place.manager]):
            shares[place.manager] += 1
    return Division(shares, split.reasons(shares), split.finish_s(split.counts))


def _room(place: Place, share: int) -> bool:
    return place.limit is None or share < place.limit


class _Split:
    """Workers of each place while :func:`divide` computes them; ``counts`` is place -> number."""

    def __init__(self, request: Request) -> None:
        self.request = request
        use_s = request.use_s
        self.use_s = use_s
        #: Places in the order in which they are filled with new workers.
        self.order = sorted(request.places, key=lambda p: (p.cost(use_s), *p.rank))
        self.counts: dict[str, int] = {p.manager: 0 for p in self.order}
        #: Manager -> number of workers beyond its own that the deadline has moved to it.
        self.hurried: dict[str, int] = {}
        self.moved: dict[str, int] = {}

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

    def _arrivals(self, counts: Mapping[str, int]) -> Capacity:
        steps: list[tuple[float, float]] = []
        for place in self.order:
            count = counts[place.manager]
            connected = min(count, place.running)
            if connected:
                steps.append((0.0, float(connected)))
            waiting = place.pending[: count - connected]
            steps += [(place.remaining_s(since), 1.0) for since in waiting]
            if new := count - connected - len(waiting):
                steps.append((place.new_s, float(new)))
        return Capacity(tuple(sorted(steps)))

    def finish_s(self, counts: Mapping[str, int]) -> float | None:
        """Return the expected seconds until the known work ends; None if it is unknown."""
        work = self.request.work
        if work is None:
            return None
        if not work.portions:
            return work.rest_s
        return finish_s(self._arrivals(counts), work.portions) + work.rest_s

    def _in_time(self, counts: Mapping[str, int], reserve: float) -> bool:
        left_s = self.request.left_s
        if left_s is None:
            return True
        finish = self.finish_s(counts)
        if finish is None:  # unknown work: at least the workers have to connect before
            steps = self._arrivals(counts).steps
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
        moved_s, kept_s = self.finish_s(self.counts), self.finish_s(before)
        if moved_s is None or kept_s is None or self.request.left_s is None:
            return
        if kept_s - moved_s < RESERVE * self.request.left_s:
            self.counts, self.hurried = before, {}  # it is as late anyhow: cost decides

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
