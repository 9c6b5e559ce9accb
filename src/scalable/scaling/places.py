"""Places that start workers, with their terms, and the division of workers among them. No I/O.

A place is one worker manager with its price, billing minimum, start-up time and limit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from scalable.scaling.capacity import Capacity, finish_s
from scalable.scaling.tiers import UnitPrice, WaitingWork

#: Assumed seconds for which a worker is used, if the length of the work is unknown or the worker
#: outlives the known work.
UNKNOWN_USE_S = 3600.0
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
        """Return the seconds until a worker should have connected that was requested before.

        It is not expected to take less time in all than one that is requested now.
        """
        return self.new_s - since_s

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
    least
        Number of workers below which :func:`~scalable.scaling.cheapest.divide` does not go if fewer
        than the wanted ones end the work in time; None to request all of them.
    """

    wanted: int
    places: tuple[Place, ...] = ()
    work: WaitingWork | None = None
    left_s: float | None = None
    least: int | None = None

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
    cost
        Expected cost of the workers until then; None if it is unknown.
    spared
        Number of wanted workers that are not requested, as the work ends in time without them.
    """

    shares: Mapping[str, int] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)
    finish_s: float | None = None
    cost: float | None = None
    spared: int = 0


def billed_s(price: UnitPrice, seconds: float) -> float:
    """Return the billed seconds of a worker that exists for some seconds."""
    if price.granularity_s > 0:
        seconds = math.ceil(seconds / price.granularity_s - 1e-9) * price.granularity_s
    return max(seconds, price.minimum_s)


class Arrivals(NamedTuple):
    """Workers of one place that connect together.

    The fields are the place, the seconds until they connect, their number, and whether they have
    connected already.
    """

    place: Place
    seconds: float
    workers: int
    running: bool = False


class Forecast:
    """End and cost of a pool's known work, if each place gets a given number of workers.

    Parameters
    ----------
    request
        Places and known work.
    """

    def __init__(self, request: Request) -> None:
        self.request = request

    def arrivals(self, counts: Mapping[str, int]) -> Iterator[Arrivals]:
        """Yield the workers of each place, the connected ones first.

        Parameters
        ----------
        counts
            Manager -> number of its workers.
        """
        for place in self.request.places:
            count = counts.get(place.manager, 0)
            connected = min(count, place.running)
            if connected:
                yield Arrivals(place, 0.0, connected, running=True)
            waiting = place.pending[: count - connected]
            for since in waiting:
                yield Arrivals(place, place.remaining_s(since), 1)
            if new := count - connected - len(waiting):
                yield Arrivals(place, place.new_s, new)

    def capacity(self, counts: Mapping[str, int]) -> Capacity:
        """Return the numbers of workers over time."""
        return Capacity(tuple(sorted((a.seconds, float(a.workers)) for a in self.arrivals(counts))))

    def finish_s(self, counts: Mapping[str, int]) -> float | None:
        """Return the expected seconds until the known work ends; None if it is unknown."""
        work = self.request.work
        return None if work is None else self._used_s(counts, work) + work.rest_s

    def _used_s(self, counts: Mapping[str, int], work: WaitingWork) -> float:
        return finish_s(self.capacity(counts), work.portions) if work.portions else 0.0

    def cost(self, counts: Mapping[str, int]) -> float | None:
        """Return the expected cost of the workers until the known work ends, as it is billed.

        None if the work is unknown, or does not end with these workers. Later work, whose workers
        are not known yet, does not count. A worker that would connect after the end is cancelled;
        what it is billed before the end of the work counts.
        """
        work = self.request.work
        if work is None:
            return None
        end_s = UNKNOWN_USE_S if work.outlived else self._used_s(counts, work)
        if math.isinf(end_s):
            return None
        total = 0.0
        for place, at_s, count, running in self.arrivals(counts):
            if running:
                total += count * place.cost(end_s, running=True)
            elif at_s - place.billed_startup_s < end_s:
                total += count * place.cost(end_s - at_s)
        return total
