"""Results of operations on a store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from scalable.cache.entries import Entry
from scalable.cache.reports import Report
from scalable.model.cache_outcomes import CacheOutcome


@dataclass(frozen=True)
class Found:
    """Stored result with its description."""

    entry: Entry
    _value: Any

    def value(self) -> Any:
        """Return the result, the same object at each call. Other callers do not share it."""
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
    #: Size of all entries in bytes.
    size: int
    #: Unusable entries, each with its reason.
    faults: tuple[Report, ...]


@dataclass(frozen=True)
class Collected:
    """Outcome of a garbage collection."""

    #: Number of results that were removed because of their age or the size of the store.
    removed: int
    #: Size of the removed results in bytes.
    size: int
    #: Number of removed files of killed processes.
    leftovers: int
    #: Number and size of the results that stay.
    left: Usage
    #: Keys of the removed results.
    keys: tuple[str, ...] = ()


class Waited(StrEnum):
    """Reason why a wait for a result ended."""

    #: The result is stored, but may be unreadable.
    STORED = "stored"
    #: No process computes it any more: take the lease, look again, and compute it.
    FREE = "free"
    #: The caller cancelled the wait.
    CANCELLED = "cancelled"
    #: The timeout has expired.
    LATE = "late"


# Hearing ------------------------------------------------------------------------------------------

outcome_listener: ContextVar[Callable[[CacheOutcome], None] | None] = ContextVar(
    "scalable_remembered_outcomes", default=None
)


@contextmanager
def heard_by(listener: Callable[[CacheOutcome], None]) -> Iterator[None]:
    """Pass the outcomes of the cached tasks of a ``with`` block to a function."""
    token = outcome_listener.set(listener)
    try:
        yield
    finally:
        outcome_listener.reset(token)


@contextmanager
def unheard() -> Iterator[None]:
    """Suppress the outcomes of cached tasks in a block that runs within another task."""
    token = outcome_listener.set(None)
    try:
        yield
    finally:
        outcome_listener.reset(token)


def listener() -> Callable[[CacheOutcome], None] | None:
    """Return the current listener for outcomes, or None."""
    return outcome_listener.get()
