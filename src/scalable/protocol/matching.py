"""The rule that matches calls with workers: the tag, its slots, and its shape. Pure.

Dask places calls by it (the tag is a resource, the slots its amount), clients refuse calls by it,
the controller explains waiting calls by it, and the managers of one cluster have to agree on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from scalable.errors import ScalableError
from scalable.units import parse_bytes


@dataclass(frozen=True)
class Shape:
    """Resources of one worker of a tag; None for an unknown one.

    Attributes
    ----------
    cpus, memory, gpus
        Amounts as in a component of the manifest.
    """

    cpus: float | None = None
    memory: str | None = None
    gpus: int | None = None

    @classmethod
    def from_pool(cls, pool: Mapping[str, Any]) -> Self:
        """Return the shape in a manager's description of a pool."""
        return cls(**{f.name: pool.get(f.name) for f in fields(cls)})


def difference(one: Shape, other: Shape) -> str | None:
    """Return the difference between two shapes as text; None if all known resources agree."""
    words = []
    for item in fields(Shape):
        a, b = getattr(one, item.name), getattr(other, item.name)
        if a is not None and b is not None and _amount(a) != _amount(b):
            words.append(f"{item.name} {a} there, {b} here")
    return ", ".join(words) or None


def _amount(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return parse_bytes(value)
    except (ScalableError, ValueError):
        return value


def slots_of(resources: Mapping[str, float] | None, tag: str) -> int:
    """Return the slots of a tag that a call takes; without a tag, 1 unless it needs resources."""
    asked = resources or {}
    if not tag:
        return 0 if asked else 1
    return int(asked.get(tag, 0))


def fits(resources: Mapping[str, float] | None, tag: str, slots: int) -> bool:
    """Return whether a worker of a tag with a number of slots can run a call."""
    return 0 < slots_of(resources, tag) <= slots
