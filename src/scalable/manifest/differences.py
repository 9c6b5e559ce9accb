"""Differences between two resolved manifests, as lines."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

#: Keys whose values may be secrets.
_HIDDEN = frozenset({"env"})
_ABSENT = object()


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return a line for each value that differs, such as ``components.a.cpus: 1 -> 2``."""
    return list(_differing(before, after, ()))


def _differing(before: Any, after: Any, path: tuple[str, ...]) -> Iterator[str]:
    tables = [value for value in (before, after) if isinstance(value, Mapping)]
    if len(tables) == 2 or (any(tables) and _ABSENT in (before, after)):
        before, after = ({} if value is _ABSENT else value for value in (before, after))
        for key in dict.fromkeys([*before, *after]):
            there = before.get(key, _ABSENT), after.get(key, _ABSENT)
            yield from _differing(*there, (*path, str(key)))
    elif before != after:
        shown = f"{_text(before)} -> {_text(after)}"
        yield f"{'.'.join(path)}: {'changed' if _HIDDEN.intersection(path) else shown}"


def _text(value: Any) -> str:
    if value is _ABSENT:
        return "(not set)"
    return value if isinstance(value, str) else json.dumps(value)
