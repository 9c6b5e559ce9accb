"""Views of single tasks: all facts about one task, and the running tasks."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True)
class RunningCall:
    """A running task."""

    key: str
    name: str
    #: Tag of its pool; None for a task without a tag.
    tag: str | None
    worker: str
    #: Seconds since the start of the task.
    since_s: float
    #: Number of tasks in a bundle (a batch of an executor's tasks); 0 for a single task.
    calls: int = 0


@dataclass(frozen=True)
class CallView:
    """All facts about one task, None for unknown ones.
    All strings are shortened. They come from the task, so they are untrusted.
    """

    key: str
    name: str = ""
    #: Tag of its pool; None for a task without a tag.
    tag: str | None = None
    #: A value of :class:`scalable.explaining.State`.
    state: str = "unknown"
    #: State and reason in one sentence, and a hint, as ``scalable explain`` prints them.
    sentence: str = ""
    advice: str = ""
    #: Position in the bundle and number of tasks in it; None and 0 for a single task.
    position: int | None = None
    calls: int = 0
    #: Results of other tasks among the arguments appear as keys until a worker has them.
    arguments: str | None = None
    worker: str | None = None
    #: Times in seconds since 1970.
    began: float | None = None
    ended: float | None = None
    queued_s: float | None = None
    #: Seconds for the transfer of the arguments.
    transfer_s: float | None = None
    duration_s: float | None = None
    cpu_s: float | None = None
    #: Bytes: peak memory during the task, and size of the result.
    peak_memory: int | None = None
    result_bytes: int | None = None
    #: Number of attempts, and the reason for the last repetition.
    tries: int = 0
    again: str | None = None
    failure_class: str | None = None
    message: str | None = None
    #: Innermost frame of the user's code.
    frame: str | None = None
    #: Standard error of a child process.
    stderr: str | None = None
    traceback: str | None = None
    #: Last lines that the worker process printed, for this task and for others.
    output: str | None = None
    #: Reasons why some facts are unknown.
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Decode the result of :meth:`to_dict`, ignoring unknown keys."""
        known = {field.name for field in dataclasses.fields(cls)}
        values = {name: value for name, value in data.items() if name in known}
        return cls(**values | {"notes": tuple(data.get("notes", ()))})
