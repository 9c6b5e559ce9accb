"""The document as a tree whose nodes know their places in the file.

Trees are immutable and share nodes: merging an overlay copies only the maps above the changed
values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

Path: TypeAlias = tuple[str | int, ...]

#: Limits of nesting and of the number of values; an alias counts each time that it is used.
MAX_DEPTH = 100
MAX_NODES = 100_000


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
        Value by the rules of the file's format.
    written
        Text in the file, so that ``00123`` can be read as text where text is expected.
    place
        Place in the file; None if the manifest is not a file.
    plain
        Whether the value gets a new type after expansion if it consists of one variable.
    broken
        Whether the value is unknown because a fault was reported for it; checks ignore it.
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
        """Return the entry of a key, or None."""
        return self.entries.get(key)


Node: TypeAlias = Scalar | Sequence | Table


@dataclass(frozen=True, slots=True)
class Entry:
    """A value together with the place of its key."""

    key_place: Place | None
    node: Node

    @property
    def place(self) -> Place | None:
        """Place to report: the value of a scalar, the key of any other or empty value."""
        if isinstance(self.node, Scalar) and (self.node.written or not self.node.plain):
            return self.node.place
        return self.key_place or self.node.place

    @property
    def is_null(self) -> bool:
        """Whether the key has no value, which means the same as no key."""
        return is_null(self.node)


def is_null(node: Node) -> bool:
    """Return whether a node is an empty value; a broken one is not empty."""
    return isinstance(node, Scalar) and node.value is None and not node.broken


def children(node: Node) -> list[tuple[str | int, Entry]]:
    """Return the children of a node with their keys or positions."""
    if isinstance(node, Table):
        return list(node.entries.items())
    if isinstance(node, Sequence):
        return [(i, Entry(item.place, item)) for i, item in enumerate(node.items)]
    return []


def child(node: Node, part: str | int) -> Entry | None:
    """Return the child of a node at a key or position, or None."""
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
        The last entry on the path.
    int
        Number of parts of the path that exist.
    """
    for depth, part in enumerate(path):
        step = child(start.node, part)
        if step is None:
            return start, depth
        start = step
    return start, len(path)


def merge(base: Node, over: Node) -> Node:
    """Merge one tree into another: maps are merged, everything else is replaced."""
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
    """Return the text of a scalar; None for a broken scalar, and for any other node."""
    if entry is None or not isinstance(entry.node, Scalar) or entry.node.broken:
        return None
    value = entry.node.value
    if isinstance(value, str):
        return value
    return None if value is None or isinstance(value, bool) else entry.node.written


def plain_value(node: Node) -> Any:
    """Return a tree as plain Python values, without keys whose value is empty or broken."""
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
    """Return whether a node stands for an unknown value."""
    return isinstance(node, Scalar) and node.broken
