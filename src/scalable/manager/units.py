"""Units: the processes, jobs or pods that a manager requested, and their known state. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from scalable.manager.launcher import Observation, UnitName, UnitState


class Phase(Enum):
    """The stages of a unit's life."""

    LAUNCHING = "launching"
    RUNNING = "running"
    DRAINING = "draining"


@dataclass
class Unit:
    """One unit that was requested.

    Attributes
    ----------
    name
        Key in the worker specification.
    pool
        Tag of its pool.
    worker_names
        Names of the workers that it brings; several for a group.
    launched_at, connected_at, missing_since
        Monotonic seconds, or None.
    starts
        Monotonic seconds of the starts of this unit and of those that it replaces.
    addresses
        Addresses of its connected workers.
    running_since
        Monotonic seconds at which its place began to run it; None before.
    waiting
        Reason why it does not run yet, as its place gives it.
    in_flight
        Whether its launcher has not answered the request for it yet.
    renewed
        Whether its successor was requested.
    leaving
        Reason why it is no longer wanted.
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


@dataclass(frozen=True)
class WorkerView:
    """One connected worker, as the scheduler sees it.

    Attributes
    ----------
    address
        Address that it listens on.
    processing
        Number of tasks assigned to it, running or not.
    occupancy
        Seconds of work that the scheduler expects of it.
    nbytes
        Bytes of results that it holds.
    drain
        Progress of its draining (``draining``, ``holding``, ``done``), or None.
    """

    address: str
    processing: int = 0
    occupancy: float = 0.0
    nbytes: int = 0
    drain: str | None = None


def worker_names(name: UnitName, entry: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of a unit's workers: its own, or one for each suffix of its group."""
    if "group" in entry:
        return tuple(f"{name}{suffix}" for suffix in entry["group"])
    return (str(name),)


def refresh(units: Iterable[Unit], workers: Mapping[str, WorkerView], now: float) -> list[Unit]:
    """Update the units from the scheduler's view; return those that connected just now.

    A worker that came back under another address was restarted by its own nanny. That is a start
    too, and counts towards a crash loop.
    """
    connected = []
    for unit in units:
        here = [workers[name] for name in unit.worker_names if name in workers]
        if len(here) < len(unit.worker_names):
            unit.missing_since = unit.missing_since or now
            continue
        unit.missing_since = None
        addresses = frozenset(view.address for view in here)
        if unit.connected_at is None:
            unit.connected_at = now
            connected.append(unit)
        elif addresses != unit.addresses:
            unit.starts = (*unit.starts, now)
        unit.addresses = addresses
        if unit.phase is Phase.LAUNCHING:
            unit.phase = Phase.RUNNING
    return connected


def take_note(
    units: Iterable[Unit], observed: Mapping[UnitName, Observation], now: float
) -> list[Unit]:
    """Update the units from their places' view; return those whose place should look again soon.

    These have lost their workers: their place may know how they ended.
    """
    missing = []
    for unit in units:
        seen = observed.get(unit.name)
        pending = seen is not None and seen.state is UnitState.PENDING
        unit.waiting = seen.reason if seen is not None and pending else None
        if seen is not None and seen.state is UnitState.RUNNING:
            unit.running_since = unit.running_since or now
        if unit.missing_since is not None and unit.connected_at is not None:
            missing.append(unit)
    return missing


def set_phase(units: Mapping[UnitName, Unit], names: Iterable[UnitName], phase: Phase) -> list[str]:
    """Move units to another phase; return the names of their workers."""
    workers: list[str] = []
    for name in names:
        units[name].phase = phase
        workers += units[name].worker_names
    return workers
