"""What a worker says of a call that has ended, read from Dask's ``startstops``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

#: Annotation of a call that was given a task's name.
TASK_ANNOTATION = "scalable_task"
#: Fields of the profile of a call, as in the rows of tasks.
PROFILE = (
    "task_name", "tag", "worker", "state", "timestamp",
    "queued_s", "transfer_s", "duration_s", "cpu_s", "peak_memory",
)  # fmt: skip
#: Action of the entry in which our workers report what a call used.
USAGE_ACTION = "scalable-usage"
#: Annotation of the Dask task that is a bundle of calls: how many, and whether each has a row.
BUNDLE_ANNOTATION = "scalable_bundle"
#: The shares of a bundle's calls whose durations are told.
SHARES = (0.0, 0.25, 0.5, 0.75, 0.8, 0.9, 0.95, 1.0)
#: Action of the entry that tells of the calls of a bundle.
BUNDLE_ACTION = "scalable-calls"


class Measured(NamedTuple):
    """Moments in seconds since 1970, lengths in seconds, memory in bytes; None if not measured."""

    began: float | None = None
    ended: float | None = None
    transfer_s: float = 0.0
    cpu_s: float | None = None
    peak_memory: int | None = None
    bundle: Mapping[str, Any] | None = None


def measured(startstops: Iterable[Mapping[str, Any]] | None) -> Measured:
    """Read what came with a call's end.

    Parameters
    ----------
    startstops
        As the scheduler's plug-ins get it; None of a call that never ran.
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
