"""Interface between the reconciler and a backend that starts workers.
A backend is, for example, the local machine, a Slurm system or a cloud.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from scalable.errors import ProviderError

#: Name of a unit. The manager chooses it and never reuses it, so that repeating a request
#: cannot start a second unit.
UnitName = Hashable


class UnitState(Enum):
    """State of a unit, as its backend reports it."""

    PENDING = "pending"
    RUNNING = "running"
    ENDED = "ended"


@dataclass(frozen=True)
class ChargedMachine:
    """Machine of a unit, as its backend charges for it.

    Attributes
    ----------
    name
        Name of the machine. Units with the same machine share its price.
    holds
        Number of units that fit on the machine.
    per_hour
        Price of one hour of the machine. None means ``holds`` times the price of a worker.
    charged_s
        Seconds for which the backend has charged for the machine. None to count from the first time
        that one of its units was observed running.
    """

    name: str
    holds: int = 1
    per_hour: float | None = None
    charged_s: float | None = None


@dataclass(frozen=True)
class Observation:
    """Report of a backend about one unit.

    Attributes
    ----------
    state
        State of the unit: waiting for resources, running, or ended.
    reason
        Message for the user: why the unit waits, or how it stopped.
    left_s
        Seconds until the backend stops the unit (its remaining walltime), 0 if none are left. None
        for no limit.
    at
        Time of the observation in monotonic seconds. None for now.
    from_outside
        Whether the backend or a person stopped the unit, so that its loss is not a crash.
    suspended
        Whether the unit is pending again after it ran, because the backend has suspended it.
    out_of_memory
        Whether the backend has stopped the unit because it used more memory than it has.
    machine
        Machine of the unit, if other units share it, it has its own price, or the backend reports
        for how long it has charged for it. Otherwise None.
    starts_within_s
        Seconds within which a running unit has to connect, in place of the manager's own limit. It
        allows for machines that count as running before they have booted and pulled the image.
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


#: Key of an entry whose unit takes over from one near its walltime. A launcher's own limit does not
#: refuse it, since results would be lost.
SUCCESSOR = "successor"


class LimitReachedError(ProviderError):
    """A backend lacks capacity for a request at the moment, and has accepted none of its units.

    The same request may succeed later, and a smaller one may succeed now.
    """

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint, transient=True)


class Launcher(Protocol):
    """A backend that starts and stops units, each a process, job or pod that provides workers.

    All methods are idempotent. They raise :class:`scalable.errors.ProviderError`. Its ``transient``
    is true if another attempt may succeed.

    Methods that contact the backend are coroutines. The reconciler runs them in the background,
    several at once (but only one ``launch`` for each pool at a time), so that a slow backend delays
    only its own units. The other methods return at once: they report the last known state and never
    block, wait, reap processes or remove containers.

    A launcher may also have:

    - an attribute ``at_once``: the number of units that may be starting at the same time;
    - an attribute ``on_change``: the manager sets it to a function that the launcher calls, from
      any thread, when a unit has stopped;
    - a coroutine function ``close()`` that is called after the last stop.
    """

    async def launch(self, entries: Mapping[UnitName, Mapping[str, Any]]) -> None:
        """Request units. Return when the backend has the request, before workers connect.

        Raises :class:`LimitReachedError` if the backend limits the number of units, and none
        of these was accepted.

        Parameters
        ----------
        entries
            Entries of the worker specification, by name. All units belong to one pool.
        """

    async def adopt(self) -> Mapping[UnitName, str]:
        """Adopt units that an earlier process of the same manager left running.

        From now on, :meth:`observe` and :meth:`stop` treat them like launched units.

        Returns
        -------
        Mapping
            Tags of the units, by name. Empty if units exit with the process that launched them.
        """

    async def stop(self, names: Sequence[UnitName]) -> None:
        """Stop units and wait until they are gone. Ignore units that are already gone.

        Units whose :meth:`launch` was cancelled before it returned are stopped too.
        """

    def observe(self) -> Mapping[UnitName, Observation]:
        """Return the last known state of each unit that was launched and not stopped."""

    def look_soon(self) -> None:
        """Schedule the next query of the units' states soon, and return at once."""

    async def logs(self, name: UnitName) -> str:
        """Return the last output of a unit, even after it has stopped. Empty if unknown."""
