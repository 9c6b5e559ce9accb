"""The document as a tree that remembers where each value was written.

Trees are immutable and share what they have in common: merging an overlay copies only the maps on
the way to what it changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

Path: TypeAlias = tuple[str | int, ...]

#: Deeper nesting and more values than these are refused, aliases counted as often as they stand.
MAX_DEPTH = 100
MAX_NODES = 100_000
#: Tags name Dask resources, jobs and pods, and stand in `tag=n` on a command line.
TAG_PATTERN = r"[A-Za-z0-9_][A-Za-z0-9_.-]*"


@dataclass(frozen=True, slots=True)
class Place:
    """Line and column of a value, counted from 1."""

    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Scalar:
    """One value.

    Attributes
    ----------
    value
        As the format's rules type it.
    written
        The text in the file, so that ``00123`` can stay what it is where text is due.
    place
        None where the manifest is not a file.
    plain
        True where a value that is wholly one variable is typed anew after expansion.
    broken
        True where the value is not known because a fault was reported for it; whoever checks the
        tree passes over it.
    """

    value: str | int | float | bool | None
    written: str
    place: Place | None = None
    plain: bool = True
    broken: bool = False


@dataclass(frozen=True, slots=True)
class Sequence:
    """A list of values."""

    items: tuple[Node, ...]
    place: Place | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """A map from text to values, in the order of the file."""

    entries: Mapping[str, Entry] = field(default_factory=dict)
    place: Place | None = None

    def get(self, key: str) -> Entry | None:
        """The entry of a key, or None."""
        return self.entries.get(key)


Node: TypeAlias = Scalar | Sequence | Table


@dataclass(frozen=True, slots=True)
class Entry:
    """A value together with the place of its key."""

    key_place: Place | None
    node: Node

    @property
    def place(self) -> Place | None:
        """Where to point: at a scalar itself, at the key of anything longer or empty."""
        if isinstance(self.node, Scalar) and (self.node.written or not self.node.plain):
            return self.node.place
        return self.key_place or self.node.place

    @property
    def is_null(self) -> bool:
        """Whether the key has no value, which counts as leaving it out."""
        return is_null(self.node)


def is_null(node: Node) -> bool:
    """Whether a node is an empty value; one that is not known is none."""
    return isinstance(node, Scalar) and node.value is None and not node.broken


def children(node: Node) -> list[tuple[str | int, Entry]]:
    """What a node holds, by key or position."""
    if isinstance(node, Table):
        return list(node.entries.items())
    if isinstance(node, Sequence):
        return [(i, Entry(item.place, item)) for i, item in enumerate(node.items)]
    return []


def child(node: Node, part: str | int) -> Entry | None:
    """One step down the tree, or None where it leads nowhere."""
    if isinstance(node, Table) and isinstance(part, str):
        return node.get(part)
    if isinstance(node, Sequence) and isinstance(part, int) and part < len(node.items):
        item = node.items[part]
        return Entry(item.place, item)
    return None


def nearest(start: Entry, path: Path) -> tuple[Entry, int]:
    """Follow a path as far as it exists.

    Returns
    -------
    Entry
        The last that was found.
    int
        How many parts of the path led to it.
    """
    for depth, part in enumerate(path):
        step = child(start.node, part)
        if step is None:
            return start, depth
        start = step
    return start, len(path)


def merge(base: Node, over: Node) -> Node:
    """Lay one tree over another: maps merge, everything else is replaced."""
    if not isinstance(base, Table) or not isinstance(over, Table):
        return over
    entries = dict(base.entries)
    for key, entry in over.entries.items():
        old = entries.get(key)
        if old is None or not (isinstance(old.node, Table) and isinstance(entry.node, Table)):
            entries[key] = entry
        else:
            entries[key] = Entry(old.key_place, merge(old.node, entry.node))
    return Table(entries, base.place)


def text_of(entry: Entry | None) -> str | None:
    """A scalar as text, as it was written; None for anything else and for what is not known."""
    if entry is None or not isinstance(entry.node, Scalar) or entry.node.broken:
        return None
    value = entry.node.value
    if isinstance(value, str):
        return value
    return None if value is None or isinstance(value, bool) else entry.node.written


def plain_value(node: Node) -> Any:
    """The tree as plain Python values, without keys that have no value or no known one."""
    if isinstance(node, Scalar):
        return node.value
    if isinstance(node, Sequence):
        return [plain_value(item) for item in node.items if not is_broken(item)]
    return {
        key: plain_value(entry.node)
        for key, entry in node.entries.items()
        if not entry.is_null and not is_broken(entry.node)
    }


def is_broken(node: Node) -> bool:
    """Whether a node stands for a value that is not known."""
    return isinstance(node, Scalar) and node.broken
