"""The document as an immutable tree. Its nodes have their positions in the file.
Trees share nodes: merging an overlay copies only the maps above the changed values.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

Path: TypeAlias = tuple[str | int, ...]

#: Limits of nesting and of the number of values; an alias counts each time that it is used.
MAX_DEPTH = 100
MAX_NODES = 100_000


@dataclass(frozen=True, slots=True)
class Position:
    """Line and column of a value, counted from 1."""

    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Scalar:
    """One value."""

    #: Value by the rules of the file's format.
    value: str | int | float | bool | None
    #: String in the file, so that ``00123`` can be read as a string where one is expected.
    written: str
    #: None if the manifest is not a file.
    place: Position | None = None
    #: True if the value gets a new type after expansion, if it consists of one variable.
    plain: bool = True
    #: True if the value is unknown because of a reported error; checks ignore it.
    broken: bool = False


@dataclass(frozen=True, slots=True)
class Sequence:
    """A list of values."""

    items: tuple[Node, ...]
    place: Position | None = None


@dataclass(frozen=True, slots=True)
class MappingNode:
    """A map from strings to values, in the order of the file."""

    entries: Mapping[str, KeyedValue] = field(default_factory=dict)
    place: Position | None = None

    def get(self, key: str) -> KeyedValue | None:
        return self.entries.get(key)


Node: TypeAlias = Scalar | Sequence | MappingNode


@dataclass(frozen=True, slots=True)
class KeyedValue:
    """A value with the position of its key."""

    key_place: Position | None
    node: Node

    @property
    def place(self) -> Position | None:
        """Position to report: that of a scalar's value, otherwise that of the key."""
        if isinstance(self.node, Scalar) and (self.node.written or not self.node.plain):
            return self.node.place
        return self.key_place or self.node.place

    @property
    def is_null(self) -> bool:
        """True if the key has no value. It is then treated as missing."""
        return is_null(self.node)


def is_null(node: Node) -> bool:
    """Return whether a node is an empty value that is not broken."""
    return isinstance(node, Scalar) and node.value is None and not node.broken


def children(node: Node) -> list[tuple[str | int, KeyedValue]]:
    """Return the children of a node with their keys or indices."""
    if isinstance(node, MappingNode):
        return list(node.entries.items())
    if isinstance(node, Sequence):
        return [(i, KeyedValue(item.place, item)) for i, item in enumerate(node.items)]
    return []


def child(node: Node, part: str | int) -> KeyedValue | None:
    """Return the child of a node at a key or index, or None."""
    if isinstance(node, MappingNode) and isinstance(part, str):
        return node.get(part)
    if isinstance(node, Sequence) and isinstance(part, int) and part < len(node.items):
        item = node.items[part]
        return KeyedValue(item.place, item)
    return None


def nearest(start: KeyedValue, path: Path) -> tuple[KeyedValue, int]:
    """Return the last existing entry on a path, and the number of existing parts."""
    for depth, part in enumerate(path):
        step = child(start.node, part)
        if step is None:
            return start, depth
        start = step
    return start, len(path)


def merge(base: Node, over: Node) -> Node:
    """Merge one tree into another: maps are merged, everything else is replaced."""
    if not isinstance(base, MappingNode) or not isinstance(over, MappingNode):
        return over
    entries = dict(base.entries)
    for key, entry in over.entries.items():
        old = entries.get(key)
        if old is None or not (
            isinstance(old.node, MappingNode) and isinstance(entry.node, MappingNode)
        ):
            entries[key] = entry
        else:
            entries[key] = KeyedValue(old.key_place, merge(old.node, entry.node))
    return MappingNode(entries, base.place)


def text_of(entry: KeyedValue | None) -> str | None:
    """Return a scalar as a string, or None for a boolean, a broken scalar, and any other node."""
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


# Scalars ------------------------------------------------------------------------------------------

_WORDS: dict[str, bool | float | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
    **{sign + word: float("inf") for sign in ("", "+") for word in (".inf", ".Inf", ".INF")},
    **{"-" + word: float("-inf") for word in (".inf", ".Inf", ".INF")},
}
_INTEGER = re.compile(r"[-+]?[0-9]+")
_OTHER_BASE = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_NUMBER_STARTS = frozenset("+-.0123456789")
# Python refuses to read a number of thousands of digits; a longer one is a string.
_LONGEST_NUMBER = 100


def resolve_plain(text: str) -> str | int | float | bool | None:
    """Return the value of an unquoted scalar, by default the string itself."""
    if text in _WORDS:
        return _WORDS[text]
    if text[0] not in _NUMBER_STARTS or len(text) > _LONGEST_NUMBER:
        return text
    if _INTEGER.fullmatch(text):
        return int(text)
    if _OTHER_BASE.fullmatch(text):
        return int(text, 0)
    return float(text) if _FLOAT.fullmatch(text) else text
