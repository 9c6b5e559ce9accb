"""What one place must be able to do for the reconciler, and nothing more."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

#: A unit's name: chosen by us, unique for each incarnation, so a retried launch cannot double it.
UnitName = Hashable


class UnitState(Enum):
    """What a place says of a unit."""

    PENDING = "pending"
    RUNNING = "running"
    ENDED = "ended"


@dataclass(frozen=True)
class Observation:
    """What a place says of one unit.

    Attributes
    ----------
    state
        Waiting for its resources, there, or gone.
    reason
        Why it waits or how it ended, fit for a user.
    left_s
        Seconds until its place ends it (a walltime), or None where it does not.
    at
        When it was seen, in monotonic seconds; None for now.
    from_outside
        Whether somebody or something else ended it, so that the calls which ran are not at fault.
    """

    state: UnitState
    reason: str | None = None
    left_s: float | None = None
    at: float | None = None
    from_outside: bool = False


class Launcher(Protocol):
    """Provisions units (a process, a job, a pod) that become workers.

    All calls are idempotent. They raise :class:`scalable.errors.ProviderError`, whose ``transient``
    says whether trying again may help.

    A launcher may have ``at_once``: how many of its units may be starting at the same time.
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
        """End units and wait until they are gone; already gone is success."""

    def observe(self) -> Mapping[UnitName, Observation]:
        """What is known of every unit that was launched and not yet forgotten; never blocks."""

    def look_soon(self) -> None:
        """Something happened: what is known may be out of date."""

    def logs(self, name: UnitName) -> str:
        """The end of a unit's output, also after it ended."""
