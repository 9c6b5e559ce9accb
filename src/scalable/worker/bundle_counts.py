"""Statistics of a bundle for the run's records: calls, durations and failures."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Sequence
from typing import Any

from scalable.frames import own_frame
from scalable.protocol.described_failures import arguments_text, described, message_of
from scalable.protocol.measured import BUNDLE, SHARES, addition
from scalable.quantiles import quantile
from scalable.spec.remembered import RememberedOutcome

#: Largest number of failed calls of a bundle that are described one by one, and of those of one
#: cause (class and place) that are described in full. Of the others only the number is known.
DESCRIBED = 500
IN_FULL = 3
#: Largest number of causes that are told apart, and largest number of characters of a message and
#: of a traceback.
_CAUSES = 50
_MESSAGE = 2000
_TRACEBACK = 20_000


class BundleCounts:
    """Statistics of the calls of one bundle (a batch of calls that is one Dask task).

    Attributes
    ----------
    durations
        Duration in seconds of each call that ran.
    rows
        State and measurements of each call; empty unless calls are recorded one by one.
    outcomes
        Outcomes of the calls whose results are remembered.
    found
        Positions of the calls that did not run, because their results were found.
    heard
        Outcome of the call that runs, if its result is remembered and is known by now.
    """

    def __init__(self) -> None:
        self.durations: list[float] = []
        self.rows: list[tuple[str, tuple[float, float, float, int | None]]] = []
        self.outcomes: list[RememberedOutcome] = []
        self.found: set[int] = set()
        self.heard: RememberedOutcome | None = None
        self._failed = 0
        self._failures: list[dict[str, Any]] = []
        #: Class and place -> number of failed calls.
        self._causes: Counter[tuple[str, str | None]] = Counter()
        #: Numbers of the failed calls that are not described, by class.
        self._more: list[dict[str, Any]] = []

    def failed(
        self, error: BaseException, position: int | None = None, given: Any = None
    ) -> str | None:
        """Count a failed call, and describe its error, the first of each cause in full.

        Parameters
        ----------
        error
            Error of the call.
        position
            Position of the call in its bundle.
        given
            Positional and keyword arguments of the call; None if they could not be unpickled.

        Returns
        -------
        str or None
            Arguments of the call as text.
        """
        self._failed += 1
        name = type(error).__name__
        if len(self._failures) >= DESCRIBED:
            self._count_only(name)
            return arguments_text(lambda: given)
        cause = name, own_frame(error)
        in_full = self._causes[cause] < IN_FULL and len(self._causes) < _CAUSES
        self._causes[cause] += 1
        trace = "".join(traceback.format_tb(error.__traceback__)) if in_full else None
        facts = described(error, lambda: given, output=in_full)
        self._failures.append(
            {
                "failure_class": name,
                "message": message_of(error)[:_MESSAGE],
                "traceback": trace and trace[-_TRACEBACK:],
                "position": position,
                **facts,
            }
        )
        return facts.get("arguments")

    def ran(self, numbers: Sequence[int], durations: Sequence[float]) -> None:
        """Count calls that have ended, except those whose results were found.

        Parameters
        ----------
        numbers, durations
            Positions of the calls in the bundle, and duration of each in seconds.
        """
        if self.found.isdisjoint(numbers):
            self.durations += durations
        else:
            both = zip(numbers, durations, strict=True)
            self.durations += [seconds for number, seconds in both if number not in self.found]

    def hear(self, outcome: RememberedOutcome) -> None:
        """Take the outcome of the call that runs, whose result is remembered."""
        self.heard = outcome

    def remember(self, number: int) -> None:
        """Note what was heard of the call that has ended, given by its position in the bundle."""
        outcome, self.heard = self.heard, None
        if outcome is not None:
            self.outcomes.append(outcome)
            if outcome.is_hit:
                self.found.add(number)

    def cancelled(self) -> None:
        """Drop what was heard of a call that was cancelled while it ran."""
        self.heard = None

    def state(self, number: int, *, failed: bool) -> str:
        """Return the state of a call that has ended, as in rows of tasks."""
        return "failed" if failed else "found" if number in self.found else "succeeded"

    def _count_only(self, name: str) -> None:
        rest = next((row for row in self._more if row["failure_class"] == name), None)
        if rest is None and len(self._more) < _CAUSES:
            rest = {
                "failure_class": name,
                "message": "not described",
                "traceback": None,
                "count": 0,
            }
            self._more.append(rest)
        rest = rest or self._more[-1]
        rest["count"] += 1

    def entry(self) -> Any:
        """Return the statistics as an entry for the Dask task's timings; times are in seconds."""
        ordered = sorted(self.durations)
        values = {
            "calls": len(ordered),
            "failed": self._failed,
            "found": len(self.found),
            "total_s": sum(ordered),
            "quantiles_s": [quantile(ordered, q) for q in SHARES] if ordered else [],
            "failures": self._failures + self._more,
            "rows": self.rows,
        }
        return addition(BUNDLE, values)
