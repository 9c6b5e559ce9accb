"""Counts of a store's operations, and reports of failed reads and writes, each logged once."""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from dataclasses import dataclass

logger = logging.getLogger("scalable.cache")

#: Number of reports that are kept.
KEPT = 100
#: Number of warnings of one kind that are logged. Later ones are counted only.
LOGGED = 5


@dataclass(frozen=True)
class Report:
    """Report of a result that was not read or not written."""

    #: Kind of an :class:`~scalable.cache.entries.Unreadable`, ``unpicklable`` or ``unwritten``.
    kind: str
    #: Cache key, or name of the function.
    subject: str
    reason: str


class Reports:
    """Counts and latest reports of a store in this process."""

    def __init__(self) -> None:
        #: Numbers of ``hits``, ``misses``, ``stored`` results, and reports of each kind. An
        #: unreadable result counts as a miss too.
        self.counts: Counter[str] = Counter()
        self.latest: deque[Report] = deque(maxlen=KEPT)
        self._told: Counter[str] = Counter()
        self._subjects: set[tuple[str, str]] = set()
        self._lock = threading.Lock()

    def count(self, name: str) -> None:
        """Increment a counter without a report."""
        with self._lock:
            self.counts[name] += 1

    def latest_about(self, subject: str) -> Report | None:
        """Return the latest report about a key or function, or None if there is no recent one."""
        with self._lock:
            latest = list(self.latest)
        return next((each for each in reversed(latest) if each.subject == subject), None)

    def add(self, report: Report, text: str, *, times: int = LOGGED) -> None:
        """Count a report. Log ``text`` for a new subject, at most ``times`` for each kind."""
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
