"""Failed calls: what failed, with which arguments, where, and on which worker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any


@dataclass(frozen=True)
class FailureDetails:
    """Facts about a failed call beside its exception; None for what is not known.

    All texts are shortened, and are untrusted: they come from the call.

    Attributes
    ----------
    arguments
        Arguments of the call as text, as in ``(2050, region='north')``.
    frame
        Innermost frame of the user's own code, as ``file:line in function``.
    stderr, stdout
        Last lines that a child process wrote to its standard error and its standard output, if the
        call failed with ``subprocess.CalledProcessError`` or ``subprocess.TimeoutExpired``.
    output
        Last lines that the process of the worker printed, which may come from other calls too.
    worker
        Name of the worker that ran the call last.
    tries
        Number of times that the call was begun.
    """

    arguments: str | None = None
    frame: str | None = None
    stderr: str | None = None
    stdout: str | None = None
    output: str | None = None
    worker: str | None = None
    tries: int = 1

    def to_dict(self) -> dict[str, Any]:
        """Return the attributes as plain JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> FailureDetails:
        """Return the details from plain values; unknown keys, and values of no use, are ignored."""
        texts = {
            field.name: value
            for field in fields(cls)
            if field.name != "tries" and isinstance(value := values.get(field.name), str)
        }
        tries = values.get("tries")
        return cls(**texts, tries=tries if isinstance(tries, int) and tries > 0 else 1)


@dataclass(frozen=True)
class FailedCall:
    """One failed call, or several failed calls of one bundle that are not described one by one.

    Attributes
    ----------
    failure_class, message
        Name of the exception's class, and its message.
    traceback
        Text of the traceback; None if there is none.
    details
        Arguments, place and worker.
    position
        Position of the call in its bundle (a batch of calls that is one Dask task); None for a
        task that is no bundle.
    count
        Number of failed calls that this stands for.
    """

    failure_class: str
    message: str
    traceback: str | None = None
    details: FailureDetails = FailureDetails()
    position: int | None = None
    count: int = 1
