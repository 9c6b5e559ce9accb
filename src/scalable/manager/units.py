"""Units, the processes, jobs or pods that a manager has requested, and their state. No I/O.
A unit provides one worker or a group of workers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from scalable.manager.launcher import Observation, UnitName, UnitState

#: Number of start times that are kept of a unit and of those that it replaces. It is more
#: than those of a crash loop.
KEPT_STARTS = 10


class Phase(Enum):
    """The stages in the life of a unit."""

    LAUNCHING = "launching"
    RUNNING = "running"
    DRAINING = "draining"


@dataclass
class Unit:
    """A requested unit, as its manager tracks it. All times are monotonic seconds."""

    #: Key in the worker specification.
    name: UnitName
    #: Tag of the unit's pool.
    pool: str
    #: Names of the unit's workers, several for a group.
    worker_names: tuple[str, ...]
    #: Time of the request.
    launched_at: float
    phase: Phase = Phase.LAUNCHING
    #: Time when all workers had first connected.
    connected_at: float | None = None
    #: Time since which a worker has not been connected.
    missing_since: float | None = None
    #: Latest start times of this unit and of the units that it replaces.
    starts: tuple[float, ...] = ()
    #: Addresses of the unit's connected workers.
    addresses: frozenset[str] = frozenset()
    #: Time since which the unit runs on its backend.
    running_since: float | None = None
    #: Reason of the backend why the unit does not run yet.
    waiting: str | None = None
    #: Whether the launcher has not answered the request for the unit yet.
    in_flight: bool = False
    #: Whether a successor for the unit was requested.
    renewed: bool = False
    #: Reason why the unit is, or would be, stopped.
    leaving: str = "scale-down"
    #: Whether the backend suspended the unit while its workers were connected.
    suspended: bool = False
    #: Whether a missing worker was stopped by the scheduler, or announced its exit.
    dismissed: bool = False
    #: Whether another unit replaces this one, perhaps under the same name.
    superseded: bool = False


@dataclass(frozen=True)
class WorkerView:
    """One connected worker, as the scheduler reports it."""

    address: str
    #: Number of tasks that are assigned to the worker, running or not.
    processing: int = 0
    #: Expected seconds of work in the assigned tasks.
    occupancy: float = 0.0
    #: Bytes of results on the worker.
    nbytes: int = 0
    #: Progress of draining: ``draining``, ``holding``, ``done``, or None.
    drain: str | None = None
    #: Reason that the worker has announced for its exit.
    leaves: str | None = None


def worker_names(name: UnitName, entry: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of a unit's workers.
    A single worker has the unit's name. A group has one name for each suffix in the entry's
    ``group``.
    """
    if "group" in entry:
        return tuple(f"{name}{suffix}" for suffix in entry["group"])
    return (str(name),)


def with_start(starts: tuple[float, ...], now: float) -> tuple[float, ...]:
    """Return the start times with another one, without the oldest beyond :data:`KEPT_STARTS`."""
    return (*starts, now)[-KEPT_STARTS:]


def refresh(
    units: Iterable[Unit],
    workers: Mapping[str, WorkerView],
    now: float,
    dismissed: Mapping[str, str] | None = None,
) -> list[Unit]:
    """Update units from the scheduler's view. Return the units that have just connected.
    A new address means that a nanny restarted the worker. That counts as a start, towards a crash
    loop, unless a client requested it. ``dismissed`` maps worker names to the last address, for
    exits that were not crashes. ``now`` is monotonic.
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
    """Update units from their backends' reports. Return the units that have lost a worker.
    Their backends should be queried again soon, because they may report how the units ended.
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
    """Set the phase of units. Return the names of their workers."""
    workers: list[str] = []
    for name in names:
        units[name].phase = phase
        workers += units[name].worker_names
    return workers
