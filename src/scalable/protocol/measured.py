"""Times and memory of a call that has ended, read from Dask's ``startstops``.

Our workers add entries of their own to these timings. Dask's pages know a few actions only, and
fail with others. Such an entry therefore has the action and the times of a moment that Dask knows,
and its kind under a key of ours.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from scalable.spec.remembered import RememberedOutcome, joined

#: Annotation that gives the task name of a call.
TASK_ANNOTATION = "scalable_task"
#: Names of the fields of a call's profile, as in the rows of ``tasks.jsonl``.
PROFILE = (
    "task_name", "tag", "worker", "state", "timestamp",
    "queued_s", "transfer_s", "duration_s", "cpu_s", "peak_memory",
)  # fmt: skip
#: Key of the kind of an entry that our workers add to ``startstops``.
KIND = "scalable"
#: Kind of the entry with a call's CPU time and memory.
USAGE = "usage"
#: Annotation of a Dask task that is a bundle (a batch of calls). It gives the number of calls, and
#: whether each call has its own row in the record.
BUNDLE_ANNOTATION = "scalable_bundle"
#: Quantiles that are reported for the durations of a bundle's calls.
SHARES = (0.0, 0.25, 0.5, 0.75, 0.8, 0.9, 0.95, 1.0)
#: Kind of the entry that reports the calls of a bundle.
BUNDLE = "calls"
#: Kind of the entry with the fields of :class:`.FailureDetails` of a failed call.
FAILURE = "failure"
#: Kind of the entry with the outcomes of remembered calls.
REMEMBERED = "remembered"
#: Action of all these entries: one for which Dask's pages have a colour, and which takes no time.
_ACTION = "deserialize"


class Measured(NamedTuple):
    """Measurements of one call; None for values that were not measured.

    ``began`` and ``ended`` are in seconds since 1970, durations in seconds, memory in bytes.
    ``remembered`` has the outcomes of the call, or of the calls of a bundle, whose results are
    remembered.
    """

    began: float | None = None
    ended: float | None = None
    transfer_s: float = 0.0
    cpu_s: float | None = None
    peak_memory: int | None = None
    bundle: Mapping[str, Any] | None = None
    failure: Mapping[str, Any] | None = None
    remembered: tuple[RememberedOutcome, ...] = ()


def addition(kind: str, values: Mapping[str, Any]) -> Any:
    """Return an entry that a worker adds to the timings of a call.

    Parameters
    ----------
    kind
        Kind of the entry.
    values
        Its values, by names other than those of Dask's entries.
    """
    now = time.time()
    return {**values, "action": _ACTION, "start": now, "stop": now, KIND: kind}


def remembered_addition(outcomes: Iterable[RememberedOutcome]) -> Any:
    """Return the entry with the outcomes of remembered calls; equal outcomes are joined."""
    told = [outcome.to_message() for outcome in joined(outcomes)]
    return addition(REMEMBERED, {"outcomes": told})


def measured(startstops: Iterable[Mapping[str, Any]] | None) -> Measured:
    """Return the measurements that came with the end of a call.

    Parameters
    ----------
    startstops
        Entries that Dask passes to scheduler plug-ins; None for a call that never ran.
    """
    began = ended = cpu_s = peak_memory = bundle = failure = None
    transfer_s = 0.0
    remembered: tuple[RememberedOutcome, ...] = ()
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
            remembered = tuple(map(RememberedOutcome.from_message, part["outcomes"]))
    return Measured(began, ended, transfer_s, cpu_s, peak_memory, bundle, failure, remembered)
