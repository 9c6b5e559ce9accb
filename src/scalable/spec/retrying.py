"""`RetryPolicy`: which failures of a task's calls are tried again, and when."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Self

#: Word for a call that raised MemoryError, and for one whose worker ended for lack of memory.
OUT_OF_MEMORY: Final = "OutOfMemory"
#: Seconds up to which the pause between two tries doubles.
LONGEST_BACKOFF_S: Final = 600.0


@dataclass(frozen=True)
class RetryPolicy:
    """Rule for further tries of failed calls.

    Attributes
    ----------
    count
        Maximum number of further tries of one call.
    backoff_s
        Seconds before the second try; each later pause is twice as long.
    on
        Names of the exceptions that are tried again; empty for all.
    memory_factor
        Memory of the pool of the next try of a call that ran out of memory, as a multiple of the
        memory of the pool in which it did; None to stay in that pool.
    """

    count: int
    backoff_s: float = 0.0
    on: tuple[str, ...] = ()
    memory_factor: float | None = None

    def covers(self, kinds: Iterable[str]) -> bool:
        """Return whether a failure is tried again.

        Parameters
        ----------
        kinds
            Name of the exception's class and names of its base classes, with their modules unless
            they are builtin; or ``OutOfMemory``.
        """
        names = set(kinds)
        if "MemoryError" in names:
            names.add(OUT_OF_MEMORY)
        if self.memory_factor is not None and OUT_OF_MEMORY in names:
            return True
        return not self.on or any(_is_named(name, wanted) for name in names for wanted in self.on)

    def wait_s(self, failures: int) -> float | None:
        """Return the seconds until the next try of a call; None if it is not tried again.

        Parameters
        ----------
        failures
            Number of tries that have failed, at least 1.
        """
        if failures > self.count:
            return None
        longest = max(self.backoff_s, LONGEST_BACKOFF_S)
        return min(self.backoff_s * 2.0 ** min(failures - 1, 60), longest)

    def to_message(self) -> dict[str, Any]:
        """Return plain values."""
        return {**asdict(self), "on": list(self.on)}

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> Self:
        """Return what :meth:`to_message` wrote."""
        return cls(**{**message, "on": tuple(message["on"])})


def _is_named(kind: str, wanted: str) -> bool:
    """Return whether a name in a policy means a class.

    A class is often imported from another module of its package than the one that defines it:
    a dotted name is compared by its package and its last part.
    """
    if kind == wanted:
        return True
    parts, asked = kind.split("."), wanted.split(".")
    return len(parts) > 1 < len(asked) and (parts[0], parts[-1]) == (asked[0], asked[-1])
