"""Failed calls as the scheduler reads them from what workers send with the end of a task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scalable.spec import FailedCall, FailureDetails

#: Classes of errors with which Dask ends a task that is lost with its worker.
_OF_LOST_WORKERS = frozenset({"KilledWorker", "OutOfMemory"})


def runs_again(failure_class: str, *, is_bundle: bool) -> bool:
    """Return whether the calls of a failed task run again in other bundles of their client.

    Parameters
    ----------
    failure_class
        Class name of the task's exception.
    is_bundle
        Whether the task is a bundle (a batch of calls that is one Dask task).
    """
    return is_bundle and failure_class in _OF_LOST_WORKERS


def failed_calls(bundle: Mapping[str, Any], worker: str | None) -> list[FailedCall]:
    """Return the failed calls of a bundle.

    Parameters
    ----------
    bundle
        Entry of the bundle in the timings of its Dask task, as ``BundleCounts.entry`` makes it.
    worker
        Name of the bundle's worker.
    """
    return [
        FailedCall(
            failure["failure_class"],
            failure["message"],
            failure["traceback"],
            FailureDetails.from_dict({"worker": worker, **failure}),
            failure.get("position"),
            failure.get("count", 1),
        )
        for failure in bundle["failures"]
    ]
