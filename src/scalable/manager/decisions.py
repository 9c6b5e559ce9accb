"""Decisions on the next steps from the existing units to the wanted units. No I/O.

A unit is one process, job or object that brings one worker or a group.
:mod:`scalable.manager.reconciler` carries the decisions out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from scalable.manager.launcher import Observation, UnitName, UnitState
from scalable.manager.units import Phase, Unit, WorkerView

#: A pool is in a crash loop, and no longer started, after this number of starts within this number
#: of seconds.
CRASH_LOOP_STARTS = 5
CRASH_LOOP_WINDOW_S = 60.0
#: Seconds for which a worker may be disconnected while its unit still runs. A Nanny restarts its
#: worker within this time.
LOST_WORKER_GRACE_S = 5.0
#: Seconds that a place (the local machine, a Slurm system, ...) may take to find out how a unit
#: ended.
OUTDATED_LIMIT_S = 60.0
MAX_BACKOFF_S = 15.0
#: Reason for which a unit leaves whose walltime leaves no room for another call.
WALLTIME = "its walltime is nearly over"


@dataclass(frozen=True)
class Margin:
    """Times at which a unit with a walltime is renewed, in seconds before the walltime ends.

    Attributes
    ----------
    stop_s
        When the unit stops taking calls, because a later call might not end in time.
    renew_s
        When the unit's successor is requested, so that it is connected when the unit stops.
    """

    stop_s: float
    renew_s: float


@dataclass(frozen=True)
class Loss:
    """A wanted unit that ended or must be given up, with the reason.

    ``from_outside`` is True if the place, a person or the scheduler ended the unit, or if the
    worker announced its end; then the loss is neither a crash nor the fault of a call. ``ended`` is
    True if the place reports that the unit has ended, ``out_of_memory`` if the place ended it for
    lack of memory.
    """

    name: UnitName
    reason: str
    from_outside: bool = False
    ended: bool = False
    out_of_memory: bool = False


@dataclass
class Decision:
    """The next steps for the existing units.

    Attributes
    ----------
    lost
        Wanted units that ended or must be given up. Each is stopped, and replaced unless its pool
        is given up.
    drain, resume
        Unwanted units to empty before they are stopped, and units that are being emptied but are
        wanted again.
    stop
        Unwanted units without connected workers, which can be stopped once the scheduler has
        confirmed that none will get work.
    renew, leave
        Units that will not last: units whose successor must be requested now, and units that must
        take no more calls, with the reason.
    left_s
        Seconds until the walltime ends of units to empty, where it is known.
    taken_back
        Those units of ``leave`` whose machine is taken back by its place.
    """

    lost: list[Loss] = field(default_factory=list)
    drain: list[UnitName] = field(default_factory=list)
    resume: list[UnitName] = field(default_factory=list)
    stop: list[UnitName] = field(default_factory=list)
    renew: list[UnitName] = field(default_factory=list)
    leave: dict[UnitName, str] = field(default_factory=dict)
    left_s: dict[UnitName, float] = field(default_factory=dict)
    taken_back: list[UnitName] = field(default_factory=list)


def decide(
    wanted: Mapping[UnitName, object],
    units: Mapping[UnitName, Unit],
    observed: Mapping[UnitName, Observation],
    workers: Mapping[str, WorkerView],
    *,
    now: float,
    start_timeout: float,
    margins: Mapping[str, Margin] | None = None,
) -> Decision:
    """Compare the wanted units with the existing units, and return the next steps.

    Units whose launcher has not answered the request yet are left alone.

    Parameters
    ----------
    wanted
        Worker specification, whose keys are the names of the wanted units.
    units
        Existing units, updated by :func:`scalable.manager.units.refresh`.
    observed
        Name of the unit -> state of the unit in its place.
    workers
        Worker name -> worker, as the scheduler sees it.
    now
        Present time in monotonic seconds.
    start_timeout
        Seconds within which the workers of a running unit have to connect.
    margins
        Tag -> margin of the pool's units, for pools with a walltime.
    """
    decision = Decision()
    for name, unit in units.items():
        if unit.in_flight:
            continue
        seen = observed.get(name, Observation(UnitState.ENDED, "it is gone from its place"))
        if name in wanted and not unit.superseded:
            _wanted(decision, unit, seen, now, start_timeout)
            _walltime(decision, unit, seen, (margins or {}).get(unit.pool))
            here = _here(unit, workers)
            if unit.phase is not Phase.DRAINING and any(view.drain for view in here):
                announced = [view.leaves for view in here if view.leaves]
                decision.leave[name] = announced[0] if announced else "it takes no more calls"
                decision.taken_back += [name] if announced else []
        elif _here(unit, workers):
            decision.drain.append(name)
            if seen.left_s is not None:
                decision.left_s[name] = seen.left_s
        else:
            decision.stop.append(name)
    return decision


def _wanted(
    decision: Decision, unit: Unit, seen: Observation, now: float, start_timeout: float
) -> None:
    restarting = unit.connected_at is not None and unit.missing_since is not None
    if unit.phase is Phase.DRAINING:
        decision.resume.append(unit.name)  # the scheduler knows whether it has left
    elif seen.state is UnitState.ENDED:
        # A unit whose walltime ended before its workers connected has failed to start.
        expired = unit.connected_at is None and seen.left_s == 0
        outside = unit.dismissed or (seen.from_outside and not expired)
        reason, memory = seen.reason or "it ended", seen.out_of_memory
        decision.lost.append(Loss(unit.name, reason, outside, ended=True, out_of_memory=memory))
    elif restarting and in_crash_loop(unit.starts, now):
        # A Nanny restarts its own worker, so the unit itself never ends.
        decision.lost.append(Loss(unit.name, "its worker ended again and again"))
    elif seen.state is UnitState.PENDING or unit.missing_since is None:
        return
    elif unit.connected_at is None:
        limit = start_timeout if seen.starts_within_s is None else seen.starts_within_s
        if unit.running_since is not None and now - unit.running_since > limit:
            reason = f"it did not connect to the scheduler within {limit:g} s"
            decision.lost.append(Loss(unit.name, reason))
    elif now - unit.missing_since > LOST_WORKER_GRACE_S and not _outdated(seen, unit, now):
        reason = "it lost its connection to the scheduler"
        decision.lost.append(Loss(unit.name, reason, unit.dismissed))


def _outdated(seen: Observation, unit: Unit, now: float) -> bool:
    """Return whether the place may soon report how a unit ended whose worker is missing."""
    assert unit.missing_since is not None
    older = seen.at is not None and seen.at < unit.missing_since
    return older and now - unit.missing_since < OUTDATED_LIMIT_S


def _walltime(decision: Decision, unit: Unit, seen: Observation, margin: Margin | None) -> None:
    if margin is None or seen.left_s is None or seen.state is not UnitState.RUNNING:
        return
    if seen.left_s < margin.stop_s:
        decision.leave[unit.name] = WALLTIME
    elif seen.left_s < margin.renew_s and not unit.renewed:
        decision.renew.append(unit.name)


def _here(unit: Unit, workers: Mapping[str, WorkerView]) -> list[WorkerView]:
    return [workers[name] for name in unit.worker_names if name in workers]


def choose_victims(
    candidates: Iterable[UnitName],
    count: int,
    units: Mapping[UnitName, Unit],
    workers: Mapping[str, WorkerView],
) -> list[UnitName]:
    """Choose the units to remove from a pool.

    Units that are not launched come first, then units that are not connected, then idle units, then
    units with the least work. Among equals, units with the fewest bytes of results come first, so
    that little data has to move.
    """

    def burden(name: UnitName) -> tuple[int, float, int, int]:
        unit = units.get(name)
        if unit is None:
            return (0, 0.0, 0, 0)
        here = _here(unit, workers)
        if not here:
            return (1, 0.0, 0, 0)
        processing = sum(view.processing for view in here)
        occupancy = sum(view.occupancy for view in here)
        return (3 if processing else 2, occupancy, processing, sum(view.nbytes for view in here))

    return sorted(candidates, key=burden)[: max(0, count)]


def backoff_s(failures: int) -> float:
    """Return the seconds to wait before the next start, after this many failures in a row."""
    return 0.0 if failures == 0 else min(MAX_BACKOFF_S, 0.5 * 2 ** (failures - 1))


def in_crash_loop(starts: Iterable[float], now: float) -> bool:
    """Return whether these start times (monotonic seconds) amount to a crash loop."""
    recent = [start for start in starts if now - start < CRASH_LOOP_WINDOW_S]
    return len(recent) >= CRASH_LOOP_STARTS
