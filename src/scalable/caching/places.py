"""The contract of a place that keeps entries: a directory, or a store of objects."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from scalable.caching.entries import Entry, Source
from scalable.caching.payloads import Buffer


@dataclass(frozen=True)
class Opened:
    """An entry that is open for reading.

    Attributes
    ----------
    source
        The file.
    size
        Its size in bytes.
    used
        Time of its last use in seconds since the epoch, by the clock of the place.
    """

    source: Source
    size: int
    used: float


@dataclass(frozen=True)
class Stored:
    """A file or object of an entry, seen from outside.

    Attributes
    ----------
    key
        Key of the entry.
    size
        Size in bytes.
    used
        Time of its last use in seconds since the epoch, by the clock of the place.
    """

    key: str
    size: int
    used: float


class Index(Protocol):
    """The entries of each function, to find the one whose key differs least."""

    def add(self, entry: Entry) -> None:
        """Add an entry; an error is ignored."""

    def nearest(
        self,
        function: str,
        parts: Mapping[str, str],
        entry_of: Callable[[str], Entry | None],
        *,
        before: float | None = None,
    ) -> Entry | None:
        """Return the entry of a function whose key has most equal parts; None if there is none.

        Parameters
        ----------
        function
            Qualified name of the function.
        parts
            Parts of the key of a call.
        entry_of
            Reads an entry by its key; None if it is gone.
        before
            Time in seconds since 1970 after which entries are left out; None for no limit.
        """

    def is_worn(self) -> bool:
        """Return whether the index should be rebuilt for its own sake."""

    def rebuild(self, entries: Iterable[Entry]) -> None:
        """Make the index anew from all entries; raise OSError if that fails."""


class Place(Protocol):
    """A place that keeps entries by their keys. Keys were checked before."""

    @property
    def index(self) -> Index:
        """The entries of each function."""

    def prepare(self) -> None:
        """Make the place if it is missing, and raise ScalableError if it cannot be used."""

    def opened(self, key: str) -> AbstractContextManager[Opened]:
        """Open an entry; raise FileNotFoundError, Unreadable or OSError."""

    def exists(self, key: str) -> bool:
        """Return whether there is an entry now, whoever wrote it."""

    def write(
        self, key: str, pieces: Sequence[Buffer], *, forced: bool = True, replace: bool = True
    ) -> None:
        """Write or replace an entry: readers find the old one or the whole new one.

        Parameters
        ----------
        key
            Key of the entry.
        pieces
            Pieces of its bytes.
        forced
            Whether it has to survive a loss of power from now on.
        replace
            Whether an entry of the key is replaced; otherwise FileExistsError is raised.
        """

    def note_use(self, key: str) -> None:
        """Note that an entry is used now; an error is ignored."""

    def stored(self) -> Iterator[Stored]:
        """Iterate over the entries, whoever wrote them."""

    def remove(self, key: str) -> bool:
        """Remove an entry, and return whether it was there."""

    def now(self) -> float:
        """Return seconds since the epoch by the clock of the place."""

    def read_note(self, name: str) -> str | None:
        """Return the text of a note that is kept beside the entries; None if there is none."""

    def write_note(self, name: str, text: str) -> None:
        """Write or replace a note; raise OSError if that fails."""

    def remove_leftovers(self, older_than_s: float) -> int:
        """Remove what killed writers left; return the number of files."""
