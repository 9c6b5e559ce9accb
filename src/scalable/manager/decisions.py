"""The next steps that turn the units that exist into the units that are wanted. Pure.

:mod:`scalable.manager.reconciler` carries them out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from scalable.manager.launcher import Observation, UnitName, UnitState
from scalable.manager.units import Phase, Unit, WorkerView

#: A crash loop: this number of starts within this number of seconds gives the pool up.
CRASH_LOOP_STARTS = 5
CRASH_LOOP_WINDOW_S = 60.0
#: Seconds that a worker may be disconnected while its unit lives. A Nanny restarts its own worker
#: within them.
LOST_WORKER_GRACE_S = 5.0
#: Seconds that a place may take to find out how a unit ended.
OUTDATED_LIMIT_S = 60.0
MAX_BACKOFF_S = 15.0


@dataclass(frozen=True)
class Margin:
    """Seconds before the end of a unit's walltime at which something has to be done.

    Attributes
    ----------
    stop_s
        The unit takes no more calls, because a call that starts later would not end in time.
    renew_s
        The successor is requested, so that it is connected by then.
    """

    stop_s: float
    renew_s: float


@dataclass(frozen=True)
class Loss:
    """A unit that ended although it is wanted."""

    name: UnitName
    reason: str
    from_outside: bool = False


@dataclass
class Decision:
    """The next steps for the units that exist.

    Attributes
    ----------
    lost
        Wanted units that ended or must be given up; each is stopped and replaced.
    drain, resume
        Units to empty before they are stopped; units that are wanted again before that is done.
    stop
        Units that are not wanted and hold nothing any more.
    renew, leave
        Units whose walltime is nearly over: those whose successor is to be requested, and those
        that are to take no more calls.
    """

    lost: list[Loss] = field(default_factory=list)
    drain: list[UnitName] = field(default_factory=list)
    resume: list[UnitName] = field(default_factory=list)
    stop: list[UnitName] = field(default_factory=list)
    renew: list[UnitName] = field(default_factory=list)
    leave: list[UnitName] = field(default_factory=list)


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
    """Compare the units that are wanted with those that exist.

    Units whose launcher has not answered yet are left alone.

    Parameters
    ----------
    wanted
        The worker specification: only its keys matter here.
    units
        Units that were asked for, after :func:`scalable.manager.units.refresh`.
    observed
        State of the units, as their places see them.
    workers
        Worker name -> worker, as the scheduler sees it.
    now
        Monotonic seconds.
    start_timeout
        Seconds that a running unit may take until its workers are connected.
    margins
        Tag -> margin of the units of that pool, for pools with a walltime.
    """
    decision = Decision()
    for name, unit in units.items():
        if unit.in_flight:
            continue
        seen = observed.get(name, Observation(UnitState.ENDED, "it is gone from its place"))
        if name in wanted:
            _wanted(decision, unit, seen, now, start_timeout)
            _walltime(decision, unit, seen, (margins or {}).get(unit.pool))
        else:
            _unwanted(decision, unit, seen, workers)
    return decision


def _wanted(
    decision: Decision, unit: Unit, seen: Observation, now: float, start_timeout: float
) -> None:
    restarting = unit.connected_at is not None and unit.missing_since is not None
    if seen.state is UnitState.ENDED:
        decision.lost.append(Loss(unit.name, seen.reason or "it ended", seen.from_outside))
    elif restarting and in_crash_loop(unit.starts, now):
        # A unit that restarts its own worker (a Nanny) is never seen to end.
        decision.lost.append(Loss(unit.name, "its worker ended again and again"))
    elif unit.phase is Phase.DRAINING:
        decision.resume.append(unit.name)
    elif seen.state is UnitState.PENDING or unit.missing_since is None:
        return
    elif unit.connected_at is None:
        if unit.running_since is not None and now - unit.running_since > start_timeout:
            reason = f"it did not connect to the scheduler within {start_timeout:g} s"
            decision.lost.append(Loss(unit.name, reason))
    elif now - unit.missing_since > LOST_WORKER_GRACE_S and not _outdated(seen, unit, now):
        decision.lost.append(Loss(unit.name, "it lost its connection to the scheduler"))


def _outdated(seen: Observation, unit: Unit, now: float) -> bool:
    """Return whether the place may soon know how a unit whose worker is missing ended."""
    assert unit.missing_since is not None
    older = seen.at is not None and seen.at < unit.missing_since
    return older and now - unit.missing_since < OUTDATED_LIMIT_S


def _walltime(decision: Decision, unit: Unit, seen: Observation, margin: Margin | None) -> None:
    if margin is None or seen.left_s is None or seen.state is not UnitState.RUNNING:
        return
    if seen.left_s < margin.stop_s:
        decision.leave.append(unit.name)
    elif seen.left_s < margin.renew_s and not unit.renewed:
        decision.renew.append(unit.name)


def _unwanted(
    decision: Decision, unit: Unit, seen: Observation, workers: Mapping[str, WorkerView]
) -> None:
    here = [workers[name] for name in unit.worker_names if name in workers]
    if seen.state is UnitState.ENDED or not here:
        # A unit that never connected, or has left already, cannot hold a result.
        decision.stop.append(unit.name)
    elif all(view.drain == "done" for view in here):
        decision.stop.append(unit.name)
    else:
        decision.drain.append(unit.name)


def choose_victims(
    candidates: Iterable[UnitName],
    count: int,
    units: Mapping[UnitName, Unit],
    workers: Mapping[str, WorkerView],
) -> list[UnitName]:
    """Choose the units that leave a pool: unlaunched, then unconnected, idle, least loaded.

    Among equals, the unit that holds the fewest bytes is chosen, so that little data has to move.
    """

    def burden(name: UnitName) -> tuple[int, float, int, int]:
        unit = units.get(name)
        if unit is None:
            return (0, 0.0, 0, 0)
        here = [workers[worker] for worker in unit.worker_names if worker in workers]
        if not here:
            return (1, 0.0, 0, 0)
        processing = sum(view.processing for view in here)
        occupancy = sum(view.occupancy for view in here)
        return (3 if processing else 2, occupancy, processing, sum(view.nbytes for view in here))

    return sorted(candidates, key=burden)[: max(0, count)]


def backoff_s(failures: int) -> float:
    """Return the seconds to wait before the next start after a number of failures in a row."""
    return 0.0 if failures == 0 else min(MAX_BACKOFF_S, 0.5 * 2 ** (failures - 1))


def in_crash_loop(starts: Iterable[float], now: float) -> bool:
    """Return whether these starts (monotonic seconds) are a crash loop."""
    recent = [start for start in starts if now - start < CRASH_LOOP_WINDOW_S]
    return len(recent) >= CRASH_LOOP_STARTS
