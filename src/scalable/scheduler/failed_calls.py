"""Failed calls as the scheduler reads them from what workers send with the end of a task."""

from __future__ import annotations

import ast
import pickle
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from scalable.spec import FailedCall, FailureDetails

#: Class of the error with which the scheduler ends a task whose worker has no more memory.
OUT_OF_MEMORY = "OutOfMemory"
#: Classes of errors with which Dask ends a task that is lost with its worker.
_OF_LOST_WORKERS = frozenset({"KilledWorker", OUT_OF_MEMORY})


class GivenUp(NamedTuple):
    """Calls of a bundle that their client has given up after lost workers.

    Attributes
    ----------
    call
        The bundle, as the ledger's call.
    failures
        The failed calls.
    """

    call: Any
    failures: tuple[FailedCall, ...]


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


def failed_calls(bundle: Mapping[str, Any], worker: str | None, lost: int = 0) -> list[FailedCall]:
    """Return the failed calls of a bundle.

    Parameters
    ----------
    bundle
        Entry of the bundle in the timings of its Dask task, as ``BundleCounts.entry`` makes it.
    worker
        Name of the bundle's worker.
    lost
        Number of times that the call of a bundle with one call was begun before.
    """
    failed = [
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
    if lost and bundle["calls"] == 1:
        return [replace(f, details=replace(f.details, tries=lost + 1)) for f in failed]
    return failed


def failure_in(details: Mapping[str, Any]) -> tuple[str, str]:
    """Return the class name and the message of the exception in the details of a transition.

    For a worker's exception they come from its text, because unpickling it could need modules
    that the scheduler does not have.
    """
    text, exception = details.get("exception_text"), details.get("exception")
    if text is not None:
        name, _, rest = text.partition("(")
        return name, _unquoted(rest.removesuffix(")")) or name
    if isinstance(exception, bytes):
        error = pickle.loads(exception)  # noqa: S301 - made by this very scheduler
        return type(error).__name__, str(error)
    return "Exception", "no message"


def _unquoted(shown: str) -> str:
    """Return the text inside the quotes, if ``shown`` is the ``repr`` of one string."""
    try:
        value = ast.literal_eval(shown)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return shown
    return value if isinstance(value, str) else shown
