"""Measurements of an ended call, read from Dask's ``startstops``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

#: Annotation of a call with the name of its task.
TASK_ANNOTATION = "scalable_task"
#: Fields of the profile of a call, as in the rows of tasks.
PROFILE = (
    "task_name", "tag", "worker", "state", "timestamp",
    "queued_s", "transfer_s", "duration_s", "cpu_s", "peak_memory",
)  # fmt: skip
#: Action of the entry in which our workers report the CPU time and memory of a call.
USAGE_ACTION = "scalable-usage"
#: Annotation of a Dask task that is a bundle: number of calls, and whether each has a row.
BUNDLE_ANNOTATION = "scalable_bundle"
#: Quantiles of the durations of a bundle's calls that are reported.
SHARES = (0.0, 0.25, 0.5, 0.75, 0.8, 0.9, 0.95, 1.0)
#: Action of the entry that reports the calls of a bundle.
BUNDLE_ACTION = "scalable-calls"


class Measured(NamedTuple):
    """Measurements of one call; None for those that were not made.

    Moments are in seconds since 1970, durations in seconds, memory in bytes.
    """

    began: float | None = None
    ended: float | None = None
    transfer_s: float = 0.0
    cpu_s: float | None = None
    peak_memory: int | None = None
    bundle: Mapping[str, Any] | None = None


def measured(startstops: Iterable[Mapping[str, Any]] | None) -> Measured:
    """Return the measurements that came with the end of a call.

    Parameters
    ----------
    startstops
        Entries as the scheduler's plug-ins get them; None for a call that never ran.
    """
    began = ended = cpu_s = peak_memory = bundle = None
    transfer_s = 0.0
    for part in startstops or ():
        action = part["action"]
        if action == "compute":
            began, ended = part["start"], part["stop"]
        elif action == "transfer":
            transfer_s += part["stop"] - part["start"]
        elif action == USAGE_ACTION:
            cpu_s, peak_memory = part["cpu_s"], part["peak_memory"]
        elif action == BUNDLE_ACTION:
            bundle = part
    return Measured(began, ended, transfer_s, cpu_s, peak_memory, bundle)
