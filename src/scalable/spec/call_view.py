"""Views of single calls: all that is known of one call, and the calls that run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True)
class RunningCall:
    """A call that runs.

    Attributes
    ----------
    key, name, tag
        Key of the call, name of its task, and tag of its pool; None for a call without a tag.
    worker
        Name of the worker.
    since_s
        Seconds since the call began.
    calls
        Number of calls in a bundle (a batch of an executor's calls); 0 for a single call.
    """

    key: str
    name: str
    tag: str | None
    worker: str
    since_s: float
    calls: int = 0


@dataclass(frozen=True)
class CallView:
    """All that is known of one call; None for what is not known.

    All texts are shortened, and are untrusted: they come from the call.

    Attributes
    ----------
    key, name, tag
        Key of the call, name of its task, and tag of its pool; None for a call without a tag.
    state
        State of the call, as a value of :class:`scalable.explaining.State`.
    sentence, advice
        State and reason in one sentence, and the way to change it, as ``scalable explain`` prints.
    position, calls
        Position of the call in its bundle (a batch of an executor's calls), and number of calls in
        the bundle; None and 0 for a single call.
    arguments
        Arguments as text. Results of other calls among them are named by the key of the call, until
        a worker has them.
    worker
        Name of the worker.
    began, ended
        Times in seconds since 1970.
    queued_s, transfer_s, duration_s, cpu_s
        Seconds in the queue, seconds for the transfer of arguments, running time, and CPU seconds.
    peak_memory, result_bytes
        Peak memory while the call ran, and size of the result, in bytes.
    tries, again
        Number of times that the call was begun, and the reason of the last repetition.
    failure_class, message, frame, stderr, traceback
        Class and message of the error, innermost frame of the user's code, standard error of a
        child process, and traceback.
    output
        Last lines that the process of the worker printed, of this call and of others.
    notes
        Reasons for which something is not known.
    """

    key: str
    name: str = ""
    tag: str | None = None
    state: str = "unknown"
    sentence: str = ""
    advice: str = ""
    position: int | None = None
    calls: int = 0
    arguments: str | None = None
    worker: str | None = None
    began: float | None = None
    ended: float | None = None
    queued_s: float | None = None
    transfer_s: float | None = None
    duration_s: float | None = None
    cpu_s: float | None = None
    peak_memory: int | None = None
    result_bytes: int | None = None
    tries: int = 0
    again: str | None = None
    failure_class: str | None = None
    message: str | None = None
    frame: str | None = None
    stderr: str | None = None
    traceback: str | None = None
    output: str | None = None
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the attributes as plain JSON values."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Return the view that :meth:`to_dict` wrote; unknown keys are left out."""
        known = {field.name for field in dataclasses.fields(cls)}
        values = {name: value for name, value in data.items() if name in known}
        return cls(**values | {"notes": tuple(data.get("notes", ()))})
