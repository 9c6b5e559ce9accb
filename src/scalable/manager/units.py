"""Units, the processes, jobs or pods that a manager has requested, and their state. No I/O.

A unit brings one worker or a group of workers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from scalable.manager.launcher import Observation, UnitName, UnitState

#: Number of the latest start times that are kept of a unit and of those that it replaces; more
#: than there are in a crash loop.
KEPT_STARTS = 10


class Phase(Enum):
    """The stages in the life of a unit."""

    LAUNCHING = "launching"
    RUNNING = "running"
    DRAINING = "draining"


@dataclass
class Unit:
    """A requested unit, with all that its manager knows about it.

    Attributes
    ----------
    name
        Name of the unit, which is its key in the worker specification.
    pool
        Tag of the unit's pool.
    worker_names
        Names of the workers that the unit brings; several for a group.
    phase
        Stage of the unit's life.
    launched_at, connected_at, missing_since
        Time of the request, time when all workers had first connected, and time since which a
        worker has not been connected; in monotonic seconds, or None.
    starts
        Latest times at which this unit, and earlier units that it replaces, were started, in
        monotonic seconds.
    addresses
        Addresses of the unit's connected workers.
    running_since
        Time since which the unit runs in its place, in monotonic seconds; None before.
    waiting
        Reason that the place gives why the unit does not run yet; None otherwise.
    in_flight
        Whether the launcher has not answered the request for the unit yet.
    renewed
        Whether a successor for the unit was requested.
    leaving
        Reason why the unit is, or would be, stopped.
    suspended
        Whether the place has suspended the unit while its workers were connected.
    dismissed
        Whether a missing worker of the unit was ended by the scheduler, or announced its end.
    superseded
        Whether another unit takes the place of this one, perhaps under the same name.
    """

    name: UnitName
    pool: str
    worker_names: tuple[str, ...]
    launched_at: float
    phase: Phase = Phase.LAUNCHING
    connected_at: float | None = None
    missing_since: float | None = None
    starts: tuple[float, ...] = ()
    addresses: frozenset[str] = frozenset()
    running_since: float | None = None
    waiting: str | None = None
    in_flight: bool = False
    renewed: bool = False
    leaving: str = "scale-down"
    suspended: bool = False
    dismissed: bool = False
    superseded: bool = False


@dataclass(frozen=True)
class WorkerView:
    """One connected worker, as the scheduler sees it.

    Attributes
    ----------
    address
        Address of the worker.
    processing
        Number of tasks that are assigned to the worker, running or not.
    occupancy
        Expected seconds of work in the assigned tasks.
    nbytes
        Bytes of results that the worker holds.
    drain
        Progress of the worker's draining (``draining``, ``holding``, ``done``), or None.
    leaves
        Reason for which the worker has announced that it leaves; None otherwise.
    """

    address: str
    processing: int = 0
    occupancy: float = 0.0
    nbytes: int = 0
    drain: str | None = None
    leaves: str | None = None


def worker_names(name: UnitName, entry: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of a unit's workers.

    The only worker of a unit has the unit's name. For a group there is one name for each suffix
    in the entry's ``group``.
    """
    if "group" in entry:
        return tuple(f"{name}{suffix}" for suffix in entry["group"])
    return (str(name),)


def with_start(starts: tuple[float, ...], now: float) -> tuple[float, ...]:
    """Return start times with another one, without the oldest of very many."""
    return (*starts, now)[-KEPT_STARTS:]


def refresh(
    units: Iterable[Unit],
    workers: Mapping[str, WorkerView],
    now: float,
    dismissed: Mapping[str, str] | None = None,
) -> list[Unit]:
    """Update units from the scheduler's view; return the units that have just connected.

    A worker that has a new address was restarted by its nanny. That restart counts as a start, and
    so towards a crash loop, unless a client has requested it.

    Parameters
    ----------
    units
        Existing units.
    workers
        Name -> connected worker.
    now
        Present time in monotonic seconds.
    dismissed
        Name -> last address of the workers whose end was no crash.
    """
    connected = []
    for unit in units:
        ends = {(dismissed or {}).get(name) for name in unit.worker_names}
        unit.dismissed = not unit.addresses.isdisjoint(ends)
        here = [workers[name] for name in unit.worker_names if name in workers]
        if len(here) < len(unit.worker_names):
            unit.missing_since = unit.missing_since or now
            continue
        unit.missing_since = None
        addresses = frozenset(view.address for view in here)
        if unit.connected_at is None:
            unit.connected_at = now
            connected.append(unit)
        elif unit.addresses - addresses - ends:
            unit.starts = with_start(unit.starts, now)
        unit.addresses = addresses
        if unit.phase is Phase.LAUNCHING:
            unit.phase = Phase.RUNNING
    return connected


def take_note(
    units: Iterable[Unit], observed: Mapping[UnitName, Observation], now: float
) -> list[Unit]:
    """Update units from what their places report; return the units that have lost a worker.

    The places of the returned units should be asked again soon, because they may know how the units
    ended.
    """
    missing = []
    for unit in units:
        seen = observed.get(unit.name)
        pending = seen is not None and seen.state is UnitState.PENDING
        unit.waiting = seen.reason if seen is not None and pending else None
        if seen is not None and seen.state is UnitState.RUNNING:
            unit.running_since = unit.running_since or now
        halted = seen is not None and seen.suspended
        unit.suspended = halted and unit.missing_since is None
        if unit.missing_since is not None and unit.connected_at is not None and not halted:
            missing.append(unit)
    return missing


def set_phase(units: Mapping[UnitName, Unit], names: Iterable[UnitName], phase: Phase) -> list[str]:
    """Set the phase of units; return the names of their workers."""
    workers: list[str] = []
    for name in names:
        units[name].phase = phase
        workers += units[name].worker_names
    return workers
