"""Answers of a store."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from scalable.caching.entries import Entry
from scalable.caching.reports import Report


@dataclass(frozen=True)
class Found:
    """A result that was found.

    Attributes
    ----------
    entry
        Its description.
    """

    entry: Entry
    _value: Any

    def value(self) -> Any:
        """Return the result: an object that nobody else has, and the same one each time."""
        return self._value


@dataclass(frozen=True)
class Usage:
    """The size of a store.

    Attributes
    ----------
    entries
        Number of entries.
    size
        Their size in bytes.
    """

    entries: int
    size: int


@dataclass(frozen=True)
class Verified:
    """The outcome of reading all entries of a store.

    Attributes
    ----------
    entries
        Number of entries that were read.
    size
        Their size in bytes.
    faults
        The entries that are no results, each with its reason.
    """

    entries: int
    size: int
    faults: tuple[Report, ...]


@dataclass(frozen=True)
class Collected:
    """The outcome of a collection of garbage.

    Attributes
    ----------
    removed
        Number of results that were removed, because of their age or of the size of the store.
    size
        Their size in bytes.
    leftovers
        Number of files that killed processes had left, and that were removed.
    left
        Number and size of the results that stay.
    keys
        Keys of the results that were removed.
    """

    removed: int
    size: int
    leftovers: int
    left: Usage
    keys: tuple[str, ...] = ()


class Waited(StrEnum):
    """The reason why waiting for a result ended."""

    #: The result is there, unless it cannot be read.
    STORED = "stored"
    #: Nobody computes it any more: take the lease, look again, and compute it.
    FREE = "free"
    #: The caller gave up.
    CANCELLED = "cancelled"
    #: The time is over.
    LATE = "late"
