"""The arguments of `PoolCluster.adapt`, which include those of Dask's clusters."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from scalable.errors import ClusterError
from scalable.manager.pools import Pool
from scalable.protocol.pools import shown
from scalable.units import parse_bytes

#: Options with the cores of one worker.
_CORES = ("nthreads", "ncores", "threads", "cores")
#: Options with the memory of one worker.
_MEMORY = ("memory_limit", "memory")


@dataclass
class Bounds:
    """The bounds of an adaptive pool, and the class that adapts it."""

    #: Tag of the pool. None if no pool was named.
    tag: str | None
    minimum: int
    #: Upper bound of the worker count. None for no upper bound.
    maximum: int | None
    #: Class that adapts the cluster instead of ours.
    adaptive: type[Any] | None = None
    #: The given ones of ``minimum_cores``, ``maximum_cores`` and the same for ``memory``.
    totals: dict[str, Any] = field(default_factory=dict)

    def apply_totals(self, pool: Pool) -> None:
        """Narrow the bounds to the totals. Raise ClusterError if a worker's size is unknown."""
        for name, total in self.totals.items():
            bound, _, unit = name.partition("_")
            if unit == "memory":
                share = parse_bytes(total) / _size(pool, name, "memory", _MEMORY)
            else:
                share = float(total) / _size(pool, name, "cpus", _CORES)
            if bound == "minimum":
                self.minimum = max(self.minimum, math.ceil(share))
            else:
                most = math.floor(share)
                self.maximum = most if self.maximum is None else min(self.maximum, most)


def read_bounds(
    given: tuple[Any, ...], tag: str | None, minimum: Any, maximum: Any, options: dict[str, Any]
) -> Bounds:
    """Return the bounds in the arguments of ``adapt``, and remove them from ``options``.
    ``given`` are the positional arguments: a class or a tag, then ``minimum`` and ``maximum``.
    Raise TypeError if there are too many.
    """
    rest = list(given)
    adaptive = options.pop("Adaptive", None)
    if rest and isinstance(rest[0], type):
        adaptive = rest.pop(0)
    if rest and isinstance(rest[0], str):
        tag = rest.pop(0)
    minimum = rest.pop(0) if rest else minimum
    maximum = rest.pop(0) if rest else maximum
    if rest:
        raise TypeError(f"adapt(tag, minimum, maximum) takes no more arguments: {rest}")
    totals = {
        name: value
        for name in ("minimum_cores", "maximum_cores", "minimum_memory", "maximum_memory")
        if (value := options.pop(name, None)) is not None
    }
    return Bounds(tag, minimum or 0, None if maximum == math.inf else maximum, adaptive, totals)


def _size(pool: Pool, asked: str, part: str, names: tuple[str, ...]) -> float:
    """Return the cores, or the memory in bytes, of one worker of a pool."""
    template: Mapping[str, Any] = (pool.template or {}).get("options", {})
    known = [template.get(name) for name in names] + [pool.shape.get(part)]
    for value in filter(None, known):
        with suppress(ValueError, TypeError):
            return float(parse_bytes(value) if part == "memory" else value)
    raise ClusterError(
        f"adapt({asked}=...): it is not known how much one worker of {shown(pool.tag)} has",
        hint=f"give {asked.partition('_')[0]}=, a number of workers",
    )
