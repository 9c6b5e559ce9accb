"""The rule by which tasks fit workers: tag, slots and shape. No I/O.

For Dask, a tag is a resource and the number of slots is its amount. All managers of a cluster must
agree on the shape (cpus, memory, gpus) for a tag.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from scalable.errors import ScalableError
from scalable.units import parse_bytes


@dataclass(frozen=True)
class Shape:
    """The cpus, memory and gpus of one worker of a tag, as in a component, or None if unknown."""

    cpus: float | None = None
    memory: str | None = None
    gpus: int | None = None

    @classmethod
    def from_pool(cls, pool: Mapping[str, Any]) -> Self:
        """Return the shape from a manager's description of a pool (see ``Attachment.pools``)."""
        return cls(**{f.name: pool.get(f.name) for f in fields(cls)})


def difference(one: Shape, other: Shape) -> str | None:
    """Describe the difference between two shapes, or None if all known amounts agree."""
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
    """Return how many slots a task takes on a tag's worker, or 0 if it needs other workers.

    Without a tag, a task without resources takes 1 slot.
    """
    asked = resources or {}
    if not tag:
        return 0 if asked else 1
    return int(asked.get(tag, 0))


def fits(resources: Mapping[str, float] | None, tag: str, slots: int) -> bool:
    """Return whether a task can run on a worker with this tag and number of slots."""
    return 0 < slots_of(resources, tag) <= slots
