"""Conversion of plain Python values into a tree."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scalable.manifest.tree import (
    MAX_DEPTH,
    MAX_NODES,
    KeyedValue,
    MappingNode,
    Node,
    Path,
    Position,
    Scalar,
    Sequence,
)


@dataclass(frozen=True)
class WrittenScalar:
    """Positions of a key and its value, and the value as written if unquoted."""

    key: Position
    value: Position
    text: str | None = None


class UnfitValueError(ValueError):
    """A value at ``path`` that is not possible in a manifest."""

    def __init__(self, message: str, path: Path) -> None:
        super().__init__(message)
        self.path = path


def tree_of(data: Mapping[Any, Any], written: Mapping[Path, WrittenScalar] | None = None) -> Node:
    """Convert maps, lists and scalars into a tree. Paths and dates become strings.
    Raises UnfitValueError for another type, a key that is not a string, or too many values or
    levels.
    """
    return _Growth(written or {}).node(data, ())


class _Growth:
    def __init__(self, written: Mapping[Path, WrittenScalar]) -> None:
        self._written = written
        self._count = 0

    def node(self, value: Any, path: Path) -> Node:
        self._count += 1
        if self._count > MAX_NODES:
            raise UnfitValueError(f"the manifest has more than {MAX_NODES:,} values", ())
        if len(path) > MAX_DEPTH:
            raise UnfitValueError(f"the manifest has more than {MAX_DEPTH} levels", ())
        written = self._written.get(path)
        place = written.value if written else None
        if isinstance(value, Mapping):
            return MappingNode(
                {_key(k, path): self._entry(k, v, path) for k, v in value.items()}, place
            )
        if isinstance(value, list | tuple):
            items = (self.node(item, (*path, i)) for i, item in enumerate(value))
            return Sequence(tuple(items), place)
        return _scalar(value, path, place, written.text if written else None)

    def _entry(self, key: str, value: Any, path: Path) -> KeyedValue:
        below = (*path, key)
        written = self._written.get(below)
        return KeyedValue(written.key if written else None, self.node(value, below))


def _key(key: Any, path: Path) -> str:
    if not isinstance(key, str):
        raise UnfitValueError(f"a key must be text, not {key!r}", path)
    return key


def _scalar(value: Any, path: Path, place: Position | None, text: str | None) -> Scalar:
    if isinstance(value, dt.date | dt.time):
        # TOML has types for these; a walltime of 12:00:00 means the string.
        written = text or value.isoformat()
        return Scalar(written, written, place, plain=False)
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if value is None:
        return Scalar(None, "", place)
    if isinstance(value, bool):
        return Scalar(value, text or str(value).lower(), place)
    if isinstance(value, int | float | str):
        return Scalar(value, text or str(value), place)
    raise UnfitValueError(f"a manifest cannot have a value of type {type(value).__name__}", path)
