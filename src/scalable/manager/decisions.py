"""What to do next so that the units that exist become the units that are wanted. Pure.

The shell that carries it out is :mod:`scalable.manager.reconciler`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from scalable.manager.launcher import Observation, UnitName, UnitState

#: A crash loop: this many starts within this many seconds mark the pool degraded.
CRASH_LOOP_STARTS = 5
CRASH_LOOP_WINDOW_S = 60.0
#: A worker that left the scheduler while its unit lives gets this long to come back. A Nanny
#: restarts its own worker within it.
LOST_WORKER_GRACE_S = 5.0
#: A place is waited for so long to say how a unit ended.
OUTDATED_LIMIT_S = 60.0
MAX_BACKOFF_S = 15.0
#: What a worker gets for handing over its results before its walltime is over.
HAND_OVER_S = 10.0


class Phase(Enum):
    """Where a unit is in its life."""

    LAUNCHING = "launching"
    RUNNING = "running"
    DRAINING = "draining"


@dataclass
class Unit:
    """One unit that was asked for.

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
        When this unit and those that it replaces were started; monotonic seconds.
    addresses
        Of its connected workers.
    running_since
        When its place began to run it, monotonic seconds; None before.
    waiting
        Why it is not there yet, as its place says.
    renewed
        Whether the unit that takes its place was asked for.
    leaving
        Why it is wanted no more.
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
    renewed: bool = False
    leaving: str = "scale-down"


@dataclass(frozen=True)
class Margin:
    """How long before its walltime a unit has to be seen to.

    Attributes
    ----------
    stop_s
        It takes no more calls: what begins now would not end in time.
    renew_s
        The unit that takes its place is asked for, so that it is there by then.
    """

    stop_s: float
    renew_s: float


@dataclass(frozen=True)
class WorkerView:
    """What the scheduler says of one connected worker.

    Attributes
    ----------
    address
        Where it listens.
    processing
        Tasks assigned to it, running or not.
    occupancy
        Seconds of work that the scheduler expects of it.
    nbytes
        Bytes of results that it holds.
    drain
        None, or how far its draining is: draining, holding, done.
    """

    address: str
    processing: int = 0
    occupancy: float = 0.0
    nbytes: int = 0
    drain: str | None = None


@dataclass(frozen=True)
class Loss:
    """A unit that is gone although it is wanted."""

    name: UnitName
    reason: str
    from_outside: bool = False


@dataclass
class Decision:
    """What to do with the units that exist.

    Attributes
    ----------
    lost
        Wanted units that are gone or must be given up; each is stopped and replaced.
    drain, resume
        Units to be emptied before they are stopped; units wanted again before that was over.
    stop
        Units that nobody wants and that hold nothing any more.
    renew, leave
        Units whose successor is to be asked for, and that are to take no more calls, because their
        walltime is nearly over.
    """

    lost: list[Loss] = field(default_factory=list)
    drain: list[UnitName] = field(default_factory=list)
    resume: list[UnitName] = field(default_factory=list)
    stop: list[UnitName] = field(default_factory=list)
    renew: list[UnitName] = field(default_factory=list)
    leave: list[UnitName] = field(default_factory=list)


def refresh(units: Iterable[Unit], workers: Mapping[str, WorkerView], now: float) -> list[Unit]:
    """Bring the units up to what the scheduler sees; returns those that connected just now.

    A worker that came back under another address was restarted by its own nanny: that is a start
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
    """Compare what is wanted with what is.

    Parameters
    ----------
    wanted
        The worker specification: only its keys matter here.
    units
        Units that were asked for, after :func:`refresh`.
    observed
        What the places say of them.
    workers
        Worker name -> what the scheduler says of it.
    now
        Monotonic seconds.
    start_timeout
        Seconds that a running unit may take until its workers are connected.
    margins
        Tag -> how long before their walltime its units have to be seen to.
    """
    decision = Decision()
    for name, unit in units.items():
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
    if seen.state is UnitState.ENDED:
        decision.lost.append(Loss(unit.name, seen.reason or "it ended", seen.from_outside))
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
    """Whether the place may know better by now how a unit whose worker is missing ended."""
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
        # Nothing that never connected, or left already, can hold a result.
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
    """Which units of a pool go when it shrinks: unlaunched, then unconnected, idle, least loaded.

    Among equals the one that holds the fewest bytes goes, so that little data has to move.
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
    """Seconds to wait before the next start after so many failed ones in a row."""
    return 0.0 if failures == 0 else min(MAX_BACKOFF_S, 0.5 * 2 ** (failures - 1))


def in_crash_loop(starts: Iterable[float], now: float) -> bool:
    """Whether these starts (monotonic seconds) are a crash loop."""
    recent = [start for start in starts if now - start < CRASH_LOOP_WINDOW_S]
    return len(recent) >= CRASH_LOOP_STARTS


def margin_for(task_s: float, wait_s: float, walltime_s: float) -> Margin:
    """When a unit with a walltime stops taking calls, and when its successor is asked for.

    Parameters
    ----------
    task_s
        Expected running time of the longest call, 0 where unknown.
    wait_s
        How long a unit took lately from being asked for until it was connected.
    walltime_s
        Length of a unit's life.

    Notes
    -----
    A fifth is added for calls that take longer than expected, and ten seconds for handing over.
    Half of a life is always left for work.
    """
    stop = min(1.2 * task_s + HAND_OVER_S, walltime_s / 2)
    return Margin(stop_s=stop, renew_s=stop + min(wait_s, walltime_s / 4))
