"""The one rule by which calls and workers belong together: the tag, its slots, and its shape. Pure.

Dask places by it (the tag is a resource, the slots its amount), clients refuse by it, the
controller explains by it, and managers of one cluster have to agree on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from scalable.errors import ScalableError
from scalable.units import parse_bytes


@dataclass(frozen=True)
class Shape:
    """What one worker of a tag has; None where it is not known.

    Attributes
    ----------
    cpus, memory, gpus
        As in a component.
    """

    cpus: float | None = None
    memory: str | None = None
    gpus: int | None = None

    @classmethod
    def from_pool(cls, pool: Mapping[str, Any]) -> Self:
        """The shape that a manager's description of a pool gives."""
        return cls(**{f.name: pool.get(f.name) for f in fields(cls)})


def difference(one: Shape, other: Shape) -> str | None:
    """In which way two shapes differ, in words; None where nothing known of them does."""
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
    """Slots of a tag that a call takes; one of any worker where it asks for no resource."""
    asked = resources or {}
    if not tag:
        return 0 if asked else 1
    return int(asked.get(tag, 0))


def fits(resources: Mapping[str, float] | None, tag: str, slots: int) -> bool:
    """Whether a worker of a tag with so many slots can hold a call."""
    return 0 < slots_of(resources, tag) <= slots
