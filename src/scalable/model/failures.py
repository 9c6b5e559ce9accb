"""Failed tasks: what failed, with which arguments, where, and on which worker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any


@dataclass(frozen=True)
class FailureDetails:
    """Facts about a failed task apart from its exception, None for unknown ones.
    All strings are shortened. They come from the task, so they are untrusted.
    """

    #: Such as ``(2050, region='north')``.
    arguments: str | None = None
    #: Innermost frame of the user's own code, as ``file:line in function``.
    frame: str | None = None
    #: Last lines of a child process, for CalledProcessError and TimeoutExpired of ``subprocess``.
    stderr: str | None = None
    stdout: str | None = None
    #: Last lines that the worker process printed, perhaps for other tasks.
    output: str | None = None
    #: Worker of the last attempt.
    worker: str | None = None
    #: Number of attempts.
    tries: int = 1

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> FailureDetails:
        """Return the details from plain values, ignoring unknown keys and values of wrong types."""
        texts = {
            field.name: value
            for field in fields(cls)
            if field.name != "tries" and isinstance(value := values.get(field.name), str)
        }
        tries = values.get("tries")
        return cls(**texts, tries=tries if isinstance(tries, int) and tries > 0 else 1)


@dataclass(frozen=True)
class FailedCall:
    """A failed task, or several failed tasks of one bundle that are not described one by one."""

    #: Name of the exception's class.
    failure_class: str
    message: str
    traceback: str | None = None
    details: FailureDetails = FailureDetails()
    #: Position in its bundle (a batch of tasks that is one Dask task), or None.
    position: int | None = None
    #: Number of failed tasks that this stands for.
    count: int = 1
