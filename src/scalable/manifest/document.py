"""The document as an immutable tree whose nodes have their positions in the file.
Trees share nodes: merging an overlay copies only the maps above the changed values.
"""

from __future__ import annotations

import datetime as dt
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

Path: TypeAlias = tuple[str | int, ...]
Plain: TypeAlias = str | int | float | bool | None

#: Limits of nesting and of the number of values; an alias counts each time that it is used.
MAX_DEPTH = 100
MAX_NODES = 100_000


class Position(NamedTuple):
    """Line and column of a value, counted from 1."""

    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Node:
    """A map, a list or a scalar."""

    #: Children of a map or list, or the value of a scalar by the rules of the file's format.
    value: dict[str, Node] | tuple[Node, ...] | Plain
    #: Position of the value, or None if the manifest is not a file.
    start: Position | None = None
    #: Position of the key, if the node is in a map.
    key: Position | None = None
    #: Scalar as it is in the file, so that ``00123`` can be read as a string if one is expected.
    written: str = ""
    #: True if the value gets a new type after expansion, if it consists of one variable.
    plain: bool = True
    #: True if the value is unknown because of a reported error; checks ignore it.
    broken: bool = False

    @property
    def entries(self) -> dict[str, Node]:
        """Children of a map, in the order of the file. Other nodes have none."""
        return self.value if isinstance(self.value, dict) else {}

    @property
    def items(self) -> tuple[Node, ...]:
        """Children of a list. Other nodes have none."""
        return self.value if isinstance(self.value, tuple) else ()

    @property
    def is_scalar(self) -> bool:
        return not isinstance(self.value, dict | tuple)

    @property
    def is_null(self) -> bool:
        """True without a value. The key is then treated as missing."""
        return self.value is None and not self.broken

    @property
    def text(self) -> str | None:
        """Scalar as a string. None for a boolean, an unknown value, and any other node."""
        if self.broken or self.value is None or isinstance(self.value, bool | dict | tuple):
            return None
        return self.value if isinstance(self.value, str) else self.written

    @property
    def place(self) -> Position | None:
        """Position to report: that of a scalar's value, otherwise that of the key."""
        if self.is_scalar and (self.written or not self.plain):
            return self.start
        return self.key or self.start

    def child(self, part: str | int) -> Node | None:
        """Return the child at a key or index, or None."""
        if isinstance(part, str):
            return self.entries.get(part)
        return self.items[part] if part < len(self.items) else None

    def at(self, *path: str | int) -> Node | None:
        """Return the node at a path below this one, or None."""
        node, depth = self.nearest(path)
        return node if depth == len(path) else None

    def nearest(self, path: Path) -> tuple[Node, int]:
        """Return the last existing node on a path, and the number of existing parts."""
        node = self
        for depth, part in enumerate(path):
            step = node.child(part)
            if step is None:
                return node, depth
            node = step
        return node, len(path)

    def plain_value(self) -> Any:
        """Return plain Python values, without keys whose value is empty or unknown."""
        if isinstance(self.value, tuple):
            return [item.plain_value() for item in self.value if not item.broken]
        if not isinstance(self.value, dict):
            return self.value
        return {
            key: node.plain_value()
            for key, node in self.value.items()
            if not node.is_null and not node.broken
        }

    def merged(self, over: Node) -> Node:
        """Return this node with another merged in: maps are merged, other nodes are replaced."""
        if not isinstance(self.value, dict) or not isinstance(over.value, dict):
            return over
        entries = dict(self.value)
        for key, node in over.value.items():
            old = entries.get(key)
            entries[key] = node if old is None else old.merged(node)
        return replace(self, value=entries)


# Plain values -------------------------------------------------------------------------------------


class Spelling(NamedTuple):
    """Positions of a key and its value, and the value as written if unquoted."""

    key: Position | None = None
    start: Position | None = None
    text: str | None = None


class UnfitValueError(ValueError):
    """A value at ``path`` that is not possible in a manifest."""

    def __init__(self, message: str, path: Path) -> None:
        super().__init__(message)
        self.path = path


def tree_of(data: Any, spellings: Mapping[Path, Spelling] | None = None) -> Node:
    """Convert maps, lists and scalars into a tree. Paths and dates become strings.
    Raises UnfitValueError for another type, a key that is not a string, too many values or levels,
    or data that is not a map.
    """
    known, count = spellings or {}, 0

    def node(value: Any, path: Path) -> Node:
        nonlocal count
        count += 1
        if count > MAX_NODES:
            raise UnfitValueError(f"the manifest has more than {MAX_NODES:,} values", ())
        if len(path) > MAX_DEPTH:
            raise UnfitValueError(f"the manifest has more than {MAX_DEPTH} levels", ())
        spelling = known.get(path) or Spelling()
        if isinstance(value, Mapping):
            for name in value:
                if not isinstance(name, str):
                    raise UnfitValueError(f"a key must be a string, not {name!r}", path)
            entries = {name: node(item, (*path, name)) for name, item in value.items()}
            return Node(entries, spelling.start, spelling.key)
        if isinstance(value, list | tuple):
            items = tuple(node(item, (*path, i)) for i, item in enumerate(value))
            return Node(items, spelling.start, spelling.key)
        return _scalar(value, path, spelling)

    root = node(data, ())
    if not isinstance(root.value, dict):
        raise UnfitValueError("a manifest must be a map of keys to values", ())
    return root


def _scalar(value: Any, path: Path, spelling: Spelling) -> Node:
    key, start, text = spelling
    if isinstance(value, dt.date | dt.time):
        # TOML has types for these; a walltime of 12:00:00 means the string.
        text = text or value.isoformat()
        return Node(text, start, key, text, plain=False)
    value = os.fspath(value) if isinstance(value, os.PathLike) else value
    if value is None:
        return Node(None, start, key)
    if isinstance(value, bool):
        return Node(value, start, key, text or str(value).lower())
    if isinstance(value, int | float | str):
        return Node(value, start, key, text or str(value))
    raise UnfitValueError(f"a manifest cannot have a value of type {type(value).__name__}", path)


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


def resolve_plain(text: str) -> Plain:
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
