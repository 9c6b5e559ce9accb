"""Measurements of tasks as the client keeps them: together for all tasks of a message."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MeasuredCalls:
    """Measurements of the tasks of one message."""

    #: Name of each task, or one name for all of them.
    names: Sequence[str]
    tag: str
    worker: str
    #: Transfer time of the arguments in seconds.
    transfer_s: float
    #: Start of each task, in seconds since 1970.
    began: Sequence[float]
    #: In seconds.
    durations: Sequence[float]
    #: In seconds.
    cpu_s: Sequence[float]
    #: Peak memory of the worker in bytes.
    peak_memory: int | None

    def name(self, position: int) -> str:
        """Return the name of the task at a position in the message."""
        return self.names[position if len(self.names) > 1 else 0]
