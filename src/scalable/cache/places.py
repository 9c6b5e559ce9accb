"""Interface of a backend that stores entries: a directory or an object store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from scalable.cache.entries import Entry, EntryReader
from scalable.cache.payloads import Buffer


@dataclass(frozen=True)
class Opened:
    """Entry that is open for reading."""

    source: EntryReader
    #: Size of the entry in bytes.
    size: int
    #: Time of the last use in seconds since the epoch, by the clock of the backend.
    used: float


@dataclass(frozen=True)
class Stored:
    """Metadata of a stored entry, without its content."""

    key: str
    #: Size of the entry in bytes.
    size: int
    #: Time of the last use in seconds since the epoch, by the clock of the backend.
    used: float


class Index(Protocol):
    """Index of each function's entries, for finding the nearest key."""

    def add(self, entry: Entry) -> None:
        """Add an entry, ignoring errors."""

    def nearest(
        self,
        function: str,
        parts: Mapping[str, str],
        entry_of: Callable[[str], Entry | None],
        *,
        before: float | None = None,
    ) -> Entry | None:
        """Return the entry of a function with the key nearest to the given parts, or None.
        ``entry_of`` returns None for a key whose entry is gone. Entries stored after ``before``
        (seconds since 1970) are ignored.
        """

    def is_worn(self) -> bool:
        """Return whether the index should be rebuilt because it has become slow."""

    def rebuild(self, entries: Iterable[Entry]) -> None:
        """Rebuild the index from all entries, or raise OSError."""


class EntryBackend(Protocol):
    """Backend that stores entries by key. Callers have checked the keys."""

    @property
    def index(self) -> Index:
        """Index of each function's entries."""

    def prepare(self) -> None:
        """Prepare the backend, or raise ScalableError if it cannot be used."""

    def opened(self, key: str) -> AbstractContextManager[Opened]:
        """Open an entry, or raise FileNotFoundError, Unreadable or OSError."""

    def exists(self, key: str) -> bool:
        """Return whether an entry exists now, regardless of its owner."""

    def write(
        self, key: str, pieces: Sequence[Buffer], *, forced: bool = True, replace: bool = True
    ) -> None:
        """Write or replace an entry. Readers find the old one or the whole new one.
        If ``forced``, the entry survives a power failure from now on. Unless ``replace``, an
        existing entry raises FileExistsError.
        """

    def note_use(self, key: str) -> None:
        """Record that an entry is used now, ignoring errors."""

    def stored(self) -> Iterator[Stored]:
        """Iterate over the entries, of any owner."""

    def remove(self, key: str) -> bool:
        """Delete an entry, and return whether it existed."""

    def now(self) -> float:
        """Return seconds since the epoch by the clock of the backend."""

    def read_note(self, name: str) -> str | None:
        """Return a note stored next to the entries, or None."""

    def write_note(self, name: str, text: str) -> None:
        """Write or replace a note, or raise OSError."""

    def remove_leftovers(self, older_than_s: float, *, dry_run: bool = False) -> int:
        """Delete files of killed writers unless ``dry_run``, and return their number."""
