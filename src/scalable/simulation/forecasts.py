"""Forecasts of the coming calls of a simulated graph, computed when they are due. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from scalable.scaling.outlook import Outlook
from scalable.scaling.readiness import Coming
from scalable.scaling.task_model import Kind

#: The coming calls are computed again without any event after this share of the start-up delay, and
#: after this share of the time since the last event.
_STALE, _STALE_SHARE = 0.05, 0.1
#: Maximum number of known calls with which the coming calls are computed for every decision. With
#: more calls, a share of them has to change first, or as many decisions have to pass. The share
#: grows with the number of calls by so much for each 10,000. This bounds the time of a simulation.
_SMALL, _CHANGED, _CHANGED_MORE = 500, 0.05, 0.1


class Looked(NamedTuple):
    """Outlooks with the coming calls of all pools, the pools, and the number of known calls."""

    outlooks: list[tuple[Outlook, Coming]]
    pools: list[str]
    calls: int


class Forecasts:
    """The last forecast of the coming calls, and what has happened since.

    Parameters
    ----------
    delay_s
        Start-up delay of workers in seconds.

    Attributes
    ----------
    readied
        Kind -> number of calls that have become ready since the last forecast.
    """

    def __init__(self, delay_s: float) -> None:
        self.readied: Counter[Kind] = Counter()
        self._delay_s = delay_s
        self._looked = Looked([], [], 0)
        #: Time of the last forecast, and of the last one before which anything had happened.
        self._looked_s = self._stirred_s = 0.0
        #: Since the last forecast: whether anything happened, number of events and decisions.
        self._stirred, self._news = True, 0

    def note(self) -> None:
        """Note that a call has become ready or has ended, or that a worker has connected."""
        self._stirred = True
        self._news += 1

    def at(self, now: float, look: Callable[[], Looked]) -> dict[str, list[Outlook]]:
        """Return the outlooks of each pool; until a forecast is due, the last one is shifted.

        Parameters
        ----------
        now
            Simulated seconds.
        look
            Function that computes a new forecast.
        """
        since = now - self._looked_s
        self._news += 1
        due = self._looked.calls <= _SMALL or self._news >= _least_news(self._looked.calls)
        stale = max(_STALE * self._delay_s, _STALE_SHARE * (now - self._stirred_s))
        if due and (self._stirred or since > stale):
            if self._stirred:
                self._stirred_s = now
            self._looked, self._looked_s, since = look(), now, 0.0
            self._stirred, self._news = False, 0
            self.readied.clear()
        return {
            name: [
                outlook._replace(coming=self._shifted(forecast.get(name, ()), since))
                for outlook, forecast in self._looked.outlooks
            ]
            for name in self._looked.pools
        }

    def _shifted(
        self, entries: Sequence[tuple[float, Kind, int]], since_s: float
    ) -> list[tuple[float, Kind, int]]:
        """Return a forecast of coming calls without those that have become ready since."""
        if not since_s:
            return list(entries)
        gone = Counter(self.readied)
        moved = []
        for ready_s, kind, calls in entries:
            ready = min(calls, gone[kind])
            gone[kind] -= ready
            if ready < calls:
                moved.append((max(0.0, ready_s - since_s), kind, calls - ready))
        return moved


def _least_news(calls: int) -> float:
    """Return the number of events and decisions after which a forecast of many calls is due."""
    return calls * (_CHANGED + _CHANGED_MORE * calls / 10_000)
