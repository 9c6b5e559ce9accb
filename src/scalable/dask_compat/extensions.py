"""Seams of a scheduler's extensions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dask.config
from distributed.scheduler import DEFAULT_EXTENSIONS

from scalable.dask_compat import moved_results, stealing
from scalable.dask_compat.facts import Seams, contains, mentions

seams = Seams("scheduler with extensions")

_STEALING = "distributed.scheduler.work-stealing"


@seams.relies_on(
    mentions("distributed.scheduler:Scheduler.__init__", "extensions", _STEALING),
    contains("distributed.scheduler:DEFAULT_EXTENSIONS", "stealing", "amm"),
)
def extensions() -> Mapping[str, Any]:
    """Return a scheduler's extensions by name: Dask's, or ours where they fit.

    As with Dask's own, ``distributed.scheduler.work-stealing`` may disable stealing.
    """
    found = dict(DEFAULT_EXTENSIONS)
    for name, ours in (
        ("stealing", None if stealing.pool_stealing() else stealing.PoolStealing),
        ("amm", None if without_sampling() else moved_results.SamplingMemoryManager),
    ):
        found[name] = ours or found[name]
    if not dask.config.get(_STEALING):
        found.pop("stealing")
    return found


def without_sampling() -> str | None:
    """Return why results are not moved with a sample of workers, or None if they are."""
    return moved_results.seams.difference(moved_results.SamplingMemoryManager.__name__)
