"""Failed tasks, read from what workers send when a task finishes."""

from __future__ import annotations

import ast
import pickle
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from scalable.model import FailedCall, FailureDetails

#: Class of the error with which the scheduler fails a task whose worker ran out of memory.
OUT_OF_MEMORY = "OutOfMemory"
#: Classes of errors with which a task fails that is lost with its worker.
_OF_LOST_WORKERS = frozenset({"KilledWorker", OUT_OF_MEMORY})


class GivenUp(NamedTuple):
    """Failed tasks of a bundle that their client has given up after lost workers.
    ``call`` is the bundle in the ledger.
    """

    call: Any
    failures: tuple[FailedCall, ...]


def runs_again(failure_class: str, *, is_bundle: bool) -> bool:
    """Return whether a failed Dask task is a bundle whose tasks its client resends in others."""
    return is_bundle and failure_class in _OF_LOST_WORKERS


def failed_calls(bundle: Mapping[str, Any], worker: str | None, lost: int = 0) -> list[FailedCall]:
    """Return a bundle's failed tasks from its entry in the timings (``BundleCounts.entry``).
    ``lost`` counts earlier starts of the task of a single-task bundle.
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
    """Return class name and message of the exception in the details of a transition.
    A worker's exception is read from its ``repr``, because unpickling could need modules that the
    scheduler does not have.
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
    """Return the string if ``shown`` is the ``repr`` of one, else ``shown``."""
    try:
        value = ast.literal_eval(shown)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return shown
    return value if isinstance(value, str) else shown
