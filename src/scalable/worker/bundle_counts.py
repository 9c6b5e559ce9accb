"""Statistics of a bundle for the run's records: tasks, durations and failures."""

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

#: Largest number of failed tasks of a bundle that are described one by one, and of those with one
#: cause (class and location) that are described in full. The others are only counted.
DESCRIBED = 500
IN_FULL = 3
#: Largest number of causes that are distinguished, and largest number of characters of a message
#: and of a traceback.
_CAUSES = 50
_MESSAGE = 2000
_TRACEBACK = 20_000


class BundleCounts:
    """Statistics of the tasks of one bundle (a batch of tasks that is one Dask task)."""

    def __init__(self) -> None:
        #: Duration in seconds of each task that ran.
        self.durations: list[float] = []
        #: State and measurements of each task. Empty unless tasks are recorded one by one.
        self.rows: list[tuple[str, tuple[float, float, float, int | None]]] = []
        #: Outcomes of the tasks whose results are cached.
        self.outcomes: list[RememberedOutcome] = []
        #: Positions of the tasks that did not run, because their results were found.
        self.found: set[int] = set()
        #: Outcome of the running task, if its result is cached and known by now.
        self.heard: RememberedOutcome | None = None
        self._failed = 0
        self._failures: list[dict[str, Any]] = []
        #: Number of failed tasks by class and location.
        self._causes: Counter[tuple[str, str | None]] = Counter()
        #: Numbers of the failed tasks that are not described, by class.
        self._more: list[dict[str, Any]] = []

    def failed(
        self, error: BaseException, position: int | None = None, given: Any = None
    ) -> str | None:
        """Count a failed task, and return its arguments as a string, or None.

        The first errors of each cause are described in full. ``position`` is that in the bundle.
        ``given`` is None if the arguments could not be unpickled.
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
        """Count tasks that have finished, except those whose results were found."""
        if self.found.isdisjoint(numbers):
            self.durations += durations
        else:
            both = zip(numbers, durations, strict=True)
            self.durations += [seconds for number, seconds in both if number not in self.found]

    def hear(self, outcome: RememberedOutcome) -> None:
        """Receive the outcome of the running task, whose result is cached."""
        self.heard = outcome

    def remember(self, number: int) -> None:
        """Assign the received outcome to the finished task at a position of the bundle."""
        outcome, self.heard = self.heard, None
        if outcome is not None:
            self.outcomes.append(outcome)
            if outcome.is_hit:
                self.found.add(number)

    def cancelled(self) -> None:
        """Drop the outcome of a task that was cancelled while it ran."""
        self.heard = None

    def state(self, number: int, *, failed: bool) -> str:
        """Return the state of a task that has finished, as in rows of tasks."""
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
        """Return the statistics as an entry for the Dask task's timings. Times are in seconds."""
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
