"""The interface between the reconciler and a place that starts workers.

A place is, for example, the local machine, a Slurm system or a cloud.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from scalable.errors import ProviderError

#: Name of a unit. The manager chooses it, and never uses it again, so that repeating a request
#: cannot start a second unit.
UnitName = Hashable


class UnitState(Enum):
    """The state of a unit, as its place reports it."""

    PENDING = "pending"
    RUNNING = "running"
    ENDED = "ended"


@dataclass(frozen=True)
class ChargedMachine:
    """The machine of a unit, as its place charges for it.

    Attributes
    ----------
    name
        Name of the machine. Units with the same machine share its price.
    holds
        Number of units that fit on the machine.
    per_hour
        Price of one hour of the machine; None for ``holds`` times the price of a worker.
    charged_s
        Seconds for which the place has charged for the machine; None to count from the time when a
        unit on it was first seen to run.
    """

    name: str
    holds: int = 1
    per_hour: float | None = None
    charged_s: float | None = None


@dataclass(frozen=True)
class Observation:
    """The report of a place about one unit.

    Attributes
    ----------
    state
        Whether the unit waits for resources, runs, or has ended.
    reason
        Text for the user: why the unit waits, or how it ended.
    left_s
        Seconds until the place ends the unit (its walltime), 0 if that time is over; None for no
        limit.
    at
        Time of the observation in monotonic seconds; None for the present.
    from_outside
        Whether the place or a person ended the unit, so that the end is no crash.
    suspended
        Whether the unit is pending again, after it ran: the place has suspended it.
    out_of_memory
        Whether the place has ended the unit because it used more memory than it has.
    machine
        Machine of the unit, if it is shared with other units, has a price of its own, or the place
        tells since when it charges; otherwise None.
    starts_within_s
        Seconds within which a running unit has to connect, where that is not the manager's own
        limit: a machine runs before its system has booted and the image is there.
    """

    state: UnitState
    reason: str | None = None
    left_s: float | None = None
    at: float | None = None
    from_outside: bool = False
    suspended: bool = False
    out_of_memory: bool = False
    machine: ChargedMachine | None = None
    starts_within_s: float | None = None


class LimitReachedError(ProviderError):
    """A place has no room for all units of a request now, and has taken none of them.

    The same request may succeed later, and a smaller one may succeed now.
    """

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint, transient=True)


class Launcher(Protocol):
    """A place that starts and stops units, each a process, job or pod that brings workers.

    All methods are idempotent. They raise :class:`scalable.errors.ProviderError`, whose
    ``transient`` says whether another attempt may succeed.

    All methods that talk to the place are coroutines. The reconciler runs them in the background,
    several at once (but only one ``launch`` for each pool at a time), so that a slow place delays
    only its own units. The other methods return at once: they report what is known, and never
    block, wait, reap processes or remove containers.

    A launcher may also have:

    - an attribute ``at_once``: the number of units that may be starting at the same time;
    - an attribute ``on_change``: the manager sets it to a function, which the launcher calls, from
      any thread, when it has noticed the end of a unit;
    - a coroutine function ``close()``, which is called after the last stop.
    """

    async def launch(self, entries: Mapping[UnitName, Mapping[str, Any]]) -> None:
        """Request units; return when the place has the request, before workers connect.

        Raises :class:`LimitReachedError` if the place limits how many units there may be, and none
        of these was taken.

        Parameters
        ----------
        entries
            Name -> entry of the worker specification. All units belong to one pool.
        """

    async def adopt(self) -> Mapping[UnitName, str]:
        """Take over units that an earlier process of the same manager left running.

        From now on, :meth:`observe` and :meth:`stop` treat them like launched units.

        Returns
        -------
        Mapping
            Name -> tag of each unit. Empty if units end with the process that launched them.
        """

    async def stop(self, names: Sequence[UnitName]) -> None:
        """End units and wait until they are gone; ignore units that are already gone.

        Units whose :meth:`launch` was cancelled before it returned are ended too.
        """

    def observe(self) -> Mapping[UnitName, Observation]:
        """Return name -> last known state of each unit that was launched and not stopped."""

    def look_soon(self) -> None:
        """Ask the place soon for the state of the units, for :meth:`observe`; return at once."""

    async def logs(self, name: UnitName) -> str:
        """Return the end of a unit's output, even after the unit ended; empty if it is unknown."""
