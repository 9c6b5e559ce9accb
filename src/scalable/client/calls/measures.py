"""Measurements of calls as the client keeps them: together for all calls of a message."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MeasuredCalls:
    """Measurements of calls that one message has told.

    Attributes
    ----------
    names
        Task name of each call, or one name for all of them.
    tag, worker
        Tag of the calls, and name of their worker.
    transfer_s
        Transfer time of the arguments in seconds.
    began, durations, cpu_s
        Start (seconds since 1970), duration and CPU time of each call in seconds.
    peak_memory
        Peak memory of the worker in bytes, or None.
    """

    names: Sequence[str]
    tag: str
    worker: str
    transfer_s: float
    began: Sequence[float]
    durations: Sequence[float]
    cpu_s: Sequence[float]
    peak_memory: int | None

    def name(self, position: int) -> str:
        """Return the task name of a call, given by its position in the message."""
        return self.names[position if len(self.names) > 1 else 0]
