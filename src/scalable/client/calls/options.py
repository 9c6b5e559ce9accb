"""Options of the calls of one executor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dask.utils import funcname

from scalable.errors import ClusterError


@dataclass(frozen=True)
class CallOptions:
    """Options that all calls of an executor share.

    Attributes
    ----------
    name
        Name of the bundles, for Dask's keys and the records.
    tag
        Tag of the pool, or "" for any worker.
    slots_per_call
        Number of slots of the tag that one call takes.
    resources
        Dask resources that one call takes, or None.
    task
        Name of the task that the user gave, or None.
    timeout_s
        Longest running time of a call in seconds, or None.
    stream_output
        Whether the output of calls is printed in this process.
    record_calls
        Whether the records have a row for each call.
    """

    name: str
    tag: str
    slots_per_call: int = 1
    resources: dict[str, float] | None = None
    task: str | None = None
    timeout_s: float | None = None
    stream_output: bool = False
    record_calls: bool = False

    def name_of(self, function: Callable[..., Any]) -> str:
        """Return the name under which the calls of a function are recorded."""
        try:
            return self.task or str(funcname(function))
        except Exception:  # noqa: BLE001 - the object's own code
            return type(function).__name__


def check_timeout(timeout: float | None) -> None:
    """Raise ClusterError unless this is a time limit in seconds, or None."""
    if timeout is None:
        return
    if isinstance(timeout, bool) or not isinstance(timeout, int | float):
        raise ClusterError(f"timeout={timeout!r}: a number of seconds or None is needed")
    if not timeout > 0:
        raise ClusterError(f"timeout={timeout!r}: a positive number of seconds is needed")
