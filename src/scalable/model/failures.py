"""Failed tasks, with their arguments, location, worker and error."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final, Self


@dataclass(frozen=True)
class FailureDetails:
    """Facts about a failed task, shortened and untrusted. Unknown ones are None."""

    #: Arguments, such as ``(2050, region='north')``.
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
        """Return the details from plain values, ignoring unknown keys and wrong types."""
        texts = {
            field.name: value
            for field in fields(cls)
            if field.name != "tries" and isinstance(value := values.get(field.name), str)
        }
        tries = values.get("tries")
        return cls(**texts, tries=tries if isinstance(tries, int) and tries > 0 else 1)


@dataclass(frozen=True)
class FailedCall:
    """A failed task, or several failed tasks of one bundle without separate descriptions."""

    #: Name of the exception's class.
    failure_class: str
    message: str
    traceback: str | None = None
    details: FailureDetails = FailureDetails()
    #: Position in its bundle (a batch of tasks that is one Dask task), or None.
    position: int | None = None
    #: Number of failed tasks that this stands for.
    count: int = 1


# `RetryPolicy`: which failures of a task are retried, and when ------------------------------------


#: Name for a MemoryError, and for the loss of a worker that ran out of memory.
OUT_OF_MEMORY: Final = "OutOfMemory"
#: Seconds up to which the pause between two attempts doubles.
LONGEST_BACKOFF_S: Final = 600.0


@dataclass(frozen=True)
class RetryPolicy:
    """Rule for retries of failed tasks."""

    #: Maximum number of retries of one task.
    count: int
    #: Seconds before the first retry; each later pause is twice as long.
    backoff_s: float = 0.0
    #: Names of the exceptions that are retried; empty for all.
    on: tuple[str, ...] = ()
    #: After running out of memory, retry in a pool with this multiple of the memory.
    memory_factor: float | None = None

    def covers(self, kinds: Iterable[str]) -> bool:
        """Return whether a failure is retried.
        ``kinds``: full names of the exception's class and bases (bare if built in), or OutOfMemory.
        """
        names = set(kinds)
        if "MemoryError" in names:
            names.add(OUT_OF_MEMORY)
        if self.memory_factor is not None and OUT_OF_MEMORY in names:
            return True
        return not self.on or any(_is_named(name, wanted) for name in names for wanted in self.on)

    def wait_s(self, failures: int) -> float | None:
        """Return the seconds until the next attempt, or None after too many ``failures``."""
        if failures > self.count:
            return None
        longest = max(self.backoff_s, LONGEST_BACKOFF_S)
        return min(self.backoff_s * 2.0 ** min(failures - 1, 60), longest)

    def to_message(self) -> dict[str, Any]:
        return {**asdict(self), "on": list(self.on)}

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> Self:
        return cls(**{**message, "on": tuple(message["on"])})


def _is_named(kind: str, wanted: str) -> bool:
    """Return whether two class names are equal, or agree in their first and last parts."""
    if kind == wanted:
        return True
    parts, asked = kind.split("."), wanted.split(".")
    return len(parts) > 1 < len(asked) and (parts[0], parts[-1]) == (asked[0], asked[-1])
