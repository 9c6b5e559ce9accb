"""The contract between the reconciler and one place that provisions workers."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

#: Name of a unit. We choose it, unique for each incarnation, so that a retry cannot launch twice.
UnitName = Hashable


class UnitState(Enum):
    """State of a unit, as its place sees it."""

    PENDING = "pending"
    RUNNING = "running"
    ENDED = "ended"


@dataclass(frozen=True)
class Observation:
    """One unit, as its place sees it.

    Attributes
    ----------
    state
        Waiting for its resources, running, or ended.
    reason
        Sentence for the user: why the unit waits or how it ended.
    left_s
        Seconds until its place ends it (a walltime), or None for no limit.
    at
        Monotonic seconds at which it was seen; None for now.
    from_outside
        Whether the calls that ran did not cause the end: the place or a person ended the unit.
    """

    state: UnitState
    reason: str | None = None
    left_s: float | None = None
    at: float | None = None
    from_outside: bool = False


class Launcher(Protocol):
    """A place that provisions units (a process, a job, a pod) that become workers.

    All methods are idempotent. They raise :class:`scalable.errors.ProviderError`, whose
    ``transient`` says whether another attempt may succeed.

    Everything that talks to the place is a coroutine. The reconciler awaits none of them in its
    own pass: it runs them in the background, several at once (but one ``launch`` for each pool at
    a time), so that a slow place delays only its own units. The other methods return at once. They
    report what is known, and never block, wait, reap processes or remove containers.

    A launcher may have the attribute ``at_once``, the number of its units that may be starting at
    the same time; the attribute ``on_change``, which it is given and calls, from any thread, when
    it has noticed the end of a unit; and a coroutine ``close()``, called after the last stop.
    """

    async def launch(self, entries: Mapping[UnitName, Mapping[str, Any]]) -> None:
        """Ask for units; return when the request is recorded, not when workers are connected.

        Parameters
        ----------
        entries
            Name -> entry of the worker specification. All are of one pool.
        """

    async def adopt(self) -> Mapping[UnitName, str]:
        """Take over the units that an earlier process of the same manager left in the place.

        Returns
        -------
        Mapping
            Name -> tag of each; from here on they are observed and stopped like launched ones.
            Empty where units end with the process that launched them.
        """

    async def stop(self, names: Sequence[UnitName]) -> None:
        """End units and wait until they are gone; a unit that is already gone is a success.

        Units whose launch was cancelled before it was answered are ended too.
        """

    def observe(self) -> Mapping[UnitName, Observation]:
        """Return the last known state of each unit that was launched and not stopped, at once."""

    def look_soon(self) -> None:
        """Make the next observation a fresh one soon; return at once."""

    async def logs(self, name: UnitName) -> str:
        """Return the end of a unit's output, also after it ended; empty for an unknown unit."""
