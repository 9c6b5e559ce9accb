"""Results of operations on a store."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from scalable.caching.entries import Entry
from scalable.caching.reports import Report


@dataclass(frozen=True)
class Found:
    """Stored result with its description."""

    entry: Entry
    _value: Any

    def value(self) -> Any:
        """Return the result: the same object each time, which is not shared with another caller."""
        return self._value


@dataclass(frozen=True)
class Usage:
    """Number of entries of a store, and their size in bytes."""

    entries: int
    size: int


@dataclass(frozen=True)
class Verified:
    """Outcome of reading all entries of a store."""

    entries: int
    #: In bytes.
    size: int
    #: Entries that are not usable, each with its reason.
    faults: tuple[Report, ...]


@dataclass(frozen=True)
class Collected:
    """Outcome of a garbage collection."""

    #: Number of results that were removed because of their age or the size of the store.
    removed: int
    #: Their size in bytes.
    size: int
    #: Number of removed files of killed processes.
    leftovers: int
    #: Number and size of the results that stay.
    left: Usage
    #: Keys of the removed results.
    keys: tuple[str, ...] = ()


class Waited(StrEnum):
    """Reason why a wait for a result stopped."""

    #: The result is stored, but may be unreadable.
    STORED = "stored"
    #: No process computes it any more: take the lease, look again, and compute it.
    FREE = "free"
    #: The caller cancelled the wait.
    CANCELLED = "cancelled"
    #: The timeout has expired.
    LATE = "late"
