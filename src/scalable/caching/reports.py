"""Counts of what a store did, and of what it could not read or write, each logged once."""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from dataclasses import dataclass

logger = logging.getLogger("scalable.caching")

#: Number of reports that are kept.
KEPT = 100
#: Number of warnings of one kind that are logged. Further ones are counted.
LOGGED = 5


@dataclass(frozen=True)
class Report:
    """A result that was not read or not written.

    Attributes
    ----------
    kind
        One word: that of :class:`~scalable.caching.entries.Unreadable`, or ``unpicklable`` or
        ``unwritten``.
    subject
        Key of the call, or name of its function.
    reason
        What is wrong.
    """

    kind: str
    subject: str
    reason: str


class Reports:
    """Counts of a store in this process.

    Attributes
    ----------
    counts
        ``hits``, ``misses``, ``stored``, and the kinds of reports, each with its number. A result
        that could not be read counts as a miss, too.
    latest
        The latest reports.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.latest: deque[Report] = deque(maxlen=KEPT)
        self._told: Counter[str] = Counter()
        self._subjects: set[tuple[str, str]] = set()
        self._lock = threading.Lock()

    def count(self, name: str) -> None:
        """Count something that needs no report."""
        with self._lock:
            self.counts[name] += 1

    def latest_about(self, subject: str) -> Report | None:
        """Return the latest report about a key or function; None if there was none lately."""
        with self._lock:
            latest = list(self.latest)
        return next((each for each in reversed(latest) if each.subject == subject), None)

    def add(self, report: Report, text: str, *, times: int = LOGGED) -> None:
        """Count a report; log it if its subject is new, up to a number of times for its kind.

        Parameters
        ----------
        report
            The report.
        text
            Sentence for the log.
        times
            Maximum number of warnings of this kind.
        """
        subject = (report.kind, report.subject)
        with self._lock:
            self.counts[report.kind] += 1
            self.latest.append(report)
            if subject in self._subjects or self._told[report.kind] >= times:
                return
            self._subjects.add(subject)
            self._told[report.kind] += 1
            last = self._told[report.kind] == times
        logger.warning("%s%s", text, " (further ones are counted, not logged)" if last else "")
