"""Options of the tasks of one executor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dask.utils import funcname

from scalable.errors import ClusterError


@dataclass(frozen=True)
class CallOptions:
    """Options that all tasks of an executor share."""

    #: Name of the bundles, for Dask's keys and the records.
    name: str
    #: Tag of the pool, or empty for any worker.
    tag: str
    #: Number of slots of the tag that one task takes.
    slots_per_call: int = 1
    #: Dask resources that one task takes.
    resources: dict[str, float] | None = None
    #: Task name that the user gave.
    task: str | None = None
    #: Longest running time of a task in seconds.
    timeout_s: float | None = None
    #: Print the output of tasks in this process.
    stream_output: bool = False
    #: Write a row for each task into the records.
    record_calls: bool = False

    def name_of(self, function: Callable[..., Any]) -> str:
        """Return the name under which the tasks of a function are recorded."""
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
