"""`RetryPolicy`: which failures of a task are retried, and when."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Self

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
        """Return True if a failure is retried.
        ``kinds``: the exception's class and its bases, with modules unless builtin, or OutOfMemory.
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
    """Compare packages and last parts only, because classes are often imported from elsewhere."""
    if kind == wanted:
        return True
    parts, asked = kind.split("."), wanted.split(".")
    return len(parts) > 1 < len(asked) and (parts[0], parts[-1]) == (asked[0], asked[-1])
