"""Times and memory of a finished task, read from Dask's ``startstops``.

Scalable's workers add entries. Dask's pages fail with unknown actions, so each entry has an action
and times known to Dask, and its kind under a separate key.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from scalable.model.cache_outcomes import CacheOutcome, joined

#: Annotation with a task's name.
TASK_ANNOTATION = "scalable_task"
#: Names of the fields of a task's profile, as in the rows of ``tasks.jsonl``.
PROFILE = (
    "task_name", "tag", "worker", "state", "timestamp",
    "queued_s", "transfer_s", "duration_s", "cpu_s", "peak_memory",
)  # fmt: skip
#: Key that contains the kind of an entry that our workers add to ``startstops``.
KIND = "scalable"
#: Kind of the entry with a task's CPU time and memory.
USAGE = "usage"
#: Annotation of a Dask task that is a bundle. It gives the number of its tasks, and whether each
#: has its own row in the record.
BUNDLE_ANNOTATION = "scalable_bundle"
#: Quantiles that are reported for the durations of a bundle's tasks.
SHARES = (0.0, 0.25, 0.5, 0.75, 0.8, 0.9, 0.95, 1.0)
#: Kind of the entry that reports the tasks of a bundle.
BUNDLE = "calls"
#: Kind of the entry with the fields of :class:`.FailureDetails` of a failed task.
FAILURE = "failure"
#: Kind of the entry with the outcomes of cached tasks.
REMEMBERED = "remembered"
#: Action of all these entries. Dask's pages have a colour for it, and it takes no time.
_ACTION = "deserialize"


class Measured(NamedTuple):
    """Measurements of one task. Unmeasured values are None.
    ``began`` and ``ended`` are in seconds since 1970, durations in seconds, memory in bytes.
    ``remembered`` has the outcomes of cached tasks, several of them for a bundle.
    """

    began: float | None = None
    ended: float | None = None
    transfer_s: float = 0.0
    cpu_s: float | None = None
    peak_memory: int | None = None
    bundle: Mapping[str, Any] | None = None
    failure: Mapping[str, Any] | None = None
    remembered: tuple[CacheOutcome, ...] = ()


def addition(kind: str, values: Mapping[str, Any]) -> Any:
    """Return an entry for a task's timings. ``values`` must not use names of Dask's entries."""
    now = time.time()
    return {**values, "action": _ACTION, "start": now, "stop": now, KIND: kind}


def cache_addition(outcomes: Iterable[CacheOutcome]) -> Any:
    """Return the entry with the merged outcomes of cached tasks."""
    told = [outcome.to_message() for outcome in joined(outcomes)]
    return addition(REMEMBERED, {"outcomes": told})


def measured(startstops: Iterable[Mapping[str, Any]] | None) -> Measured:
    """Return a finished task's measurements from Dask's entries. Unknown values are None."""
    began = ended = cpu_s = peak_memory = bundle = failure = None
    transfer_s = 0.0
    remembered: tuple[CacheOutcome, ...] = ()
    for part in startstops or ():
        kind = part.get(KIND) or part["action"]
        if kind == "compute":
            began, ended = part["start"], part["stop"]
        elif kind == "transfer":
            transfer_s += part["stop"] - part["start"]
        elif kind == USAGE:
            cpu_s, peak_memory = part["cpu_s"], part["peak_memory"]
        elif kind == BUNDLE:
            bundle = part
        elif kind == FAILURE:
            failure = part
        elif kind == REMEMBERED:
            remembered = tuple(map(CacheOutcome.from_message, part["outcomes"]))
    return Measured(began, ended, transfer_s, cpu_s, peak_memory, bundle, failure, remembered)
