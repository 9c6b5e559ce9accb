"""Units (processes, jobs or pods) that a manager has requested, each with its workers. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from scalable.manager.launcher import Observation, UnitName, UnitState
from scalable.pricing.metering import Charge

#: Number of start times that are kept of a unit and the units that it replaces. It must exceed the
#: starts of a crash loop.
KEPT_STARTS = 10


class Phase(Enum):
    """Stages in the life of a unit. From ``LOST`` on, the unit counts no longer."""

    LAUNCHING = "launching"
    RUNNING = "running"
    DRAINING = "draining"
    #: The reason for its loss is being read.
    LOST = "lost"
    #: It is stopped once the scheduler confirms that it gets no work. Otherwise it is used again.
    FAILED = "failed"
    #: Its process or job has ended, and what remains of it is removed.
    ENDED = "ended"
    STOPPING = "stopping"


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
    #: Time since which the backend charges for the unit.
    charged_since: float | None = None
    #: Backend's reason why the unit does not run yet.
    waiting: str | None = None
    #: True if the launcher has not answered the request for the unit yet.
    in_flight: bool = False
    #: True if a successor for the unit was requested.
    renewed: bool = False
    #: Reason why the unit is, or would be, stopped.
    leaving: str = "scale-down"
    #: True if the backend suspended the unit while its workers were connected.
    suspended: bool = False
    #: True if a missing worker was stopped by the scheduler, or announced its exit.
    dismissed: bool = False
    #: True if a missing worker was lost while it had tasks, or a connected one has tasks.
    at_work: bool = False
    #: True if another unit replaces this one, perhaps under the same name.
    superseded: bool = False


@dataclass(frozen=True)
class WorkerView:
    """One worker, as the scheduler reports it."""

    #: Empty while it is not connected.
    address: str = ""
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
    #: Address of its last process that was stopped by the scheduler, or announced its exit: it did
    #: not crash.
    dismissed_at: str = ""
    #: Address of its last process that was lost with tasks: not a failed start.
    lost_at_work: str = ""


def worker_names(name: UnitName, entry: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of a unit's workers."""
    if "group" in entry:
        return tuple(f"{name}{suffix}" for suffix in entry["group"])
    return (str(name),)


def with_start(starts: tuple[float, ...], now: float) -> tuple[float, ...]:
    """Append a start time, and return at most the :data:`KEPT_STARTS` newest ones."""
    return (*starts, now)[-KEPT_STARTS:]


def refresh(units: Iterable[Unit], workers: Mapping[str, WorkerView], now: float) -> list[Unit]:
    """Update units from the scheduler's view, and return the newly connected ones.
    ``now`` is monotonic. A nanny's restart counts towards a crash loop, unless a client requested
    it or a task caused it.
    """
    connected = []
    for unit in units:
        views = _views(unit, workers)
        here = [view for view in views if view.address]
        ends = {view.dismissed_at for view in views}
        unit.dismissed = not unit.addresses.isdisjoint(ends)
        lost = {view.lost_at_work for view in views if view.lost_at_work}
        # A worker may be lost with its first task before this manager has seen it connected.
        at_work = lost & unit.addresses if unit.addresses else lost
        unit.at_work = bool(at_work) or any(view.processing for view in here)
        ends |= lost
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
    """Update units from their backends' reports. Return units with missing workers."""
    missing = []
    for unit in units:
        seen = observed.get(unit.name)
        pending = seen is not None and seen.state is UnitState.PENDING
        unit.waiting = seen.reason if seen is not None and pending else None
        if seen is not None and seen.state is UnitState.RUNNING:
            unit.running_since = unit.running_since or now
        if unit.charged_since is None:
            unit.charged_since = _charged_since(unit, seen, now)
        halted = seen is not None and seen.suspended
        unit.suspended = halted and unit.missing_since is None
        if unit.missing_since is not None and unit.connected_at is not None and not halted:
            missing.append(unit)
    return missing


def _charged_since(unit: Unit, seen: Observation | None, now: float) -> float | None:
    charged_s = None if seen is None or seen.machine is None else seen.machine.charged_s
    moments = unit.running_since, unit.connected_at, None if charged_s is None else now - charged_s
    return min((moment for moment in moments if moment is not None), default=None)


def charges_of(
    units: Iterable[Unit], observed: Mapping[UnitName, Observation], now: float
) -> dict[str, Charge]:
    """Map the charged units that may still exist to their charges. ``now`` is monotonic."""
    charges = {}
    for unit in units:
        seen, since = observed.get(unit.name), unit.charged_since
        if since is None or (seen is not None and seen.state is UnitState.ENDED):
            continue
        workers, charged_s = tuple(map(str, unit.worker_names)), now - since
        machine = None if seen is None else seen.machine
        if machine is None:
            charges[str(unit.name)] = Charge(unit.pool, charged_s, workers)
            continue
        if machine.charged_s is not None:
            charged_s = machine.charged_s
        charges[str(unit.name)] = Charge(
            unit.pool, charged_s, workers, machine.name, machine.per_hour, max(1, machine.holds)
        )
    return charges


# Decisions ----------------------------------------------------------------------------------------

#: Number of starts, and the seconds within which they happen, that make a crash loop. The pool is
#: then no longer started.
CRASH_LOOP_STARTS = 5
CRASH_LOOP_WINDOW_S = 60.0
#: Seconds for which a worker may be disconnected while its unit runs. A Nanny restarts its
#: worker within this time.
LOST_WORKER_GRACE_S = 5.0
#: Seconds that a backend (the local machine, a Slurm system, ...) may take to find out how a unit
#: ended.
OUTDATED_LIMIT_S = 60.0
MAX_BACKOFF_S = 15.0
#: Reason of a unit that leaves because its walltime is too short for another task.
WALLTIME = "its walltime is nearly over"


@dataclass(frozen=True)
class Margin:
    """Seconds before the end of a unit's walltime at which it is renewed and stopped."""

    #: When the unit stops accepting tasks, because a later task might not finish in time.
    stop_s: float
    #: When the successor is requested, so that it is connected when the unit stops.
    renew_s: float


@dataclass(frozen=True)
class Loss:
    """A desired unit that stopped or must be given up, with the reason."""

    name: UnitName
    reason: str
    #: True if stopped from outside or announced by the worker: not a crash or a task's error.
    from_outside: bool = False
    #: True if the backend reports that the unit has stopped.
    ended: bool = False
    #: True if the backend stopped the unit for lack of memory.
    out_of_memory: bool = False


@dataclass
class NextSteps:
    """Next steps for the existing units."""

    #: Desired units to stop, and to replace unless their pool is given up.
    lost: list[Loss] = field(default_factory=list)
    #: Undesired units to empty before they are stopped, and the seconds until their walltime is
    #: over, if known.
    drain: dict[UnitName, float | None] = field(default_factory=dict)
    #: Draining units that are desired again.
    resume: list[UnitName] = field(default_factory=list)
    #: Undesired units without connected workers. The scheduler has to confirm the stop.
    stop: list[UnitName] = field(default_factory=list)
    #: Units whose successor must be requested now.
    renew: list[UnitName] = field(default_factory=list)
    #: Units that must accept no more tasks, with the reason.
    leave: dict[UnitName, str] = field(default_factory=dict)
    #: Undesired units that were stopped from outside, not because of their tasks.
    excused: list[UnitName] = field(default_factory=list)
    #: Units of ``leave`` whose machine is preempted.
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
) -> NextSteps:
    """Compare the desired units with the existing units, and return the next steps.
    Units with unanswered launch requests are skipped. ``now`` is monotonic. ``margins`` has the
    tags of pools with a walltime.
    """
    decision = NextSteps()
    for name, unit in units.items():
        if unit.in_flight:
            continue
        seen = observed.get(
            name, Observation(UnitState.ENDED, "it no longer exists in its backend")
        )
        if name in wanted and not unit.superseded:
            _wanted(decision, unit, seen, now, start_timeout)
            _walltime(decision, unit, seen, (margins or {}).get(unit.pool))
            here = _views(unit, workers)
            if unit.phase is not Phase.DRAINING and any(view.drain for view in here):
                announced = [view.leaves for view in here if view.leaves]
                decision.leave[name] = announced[0] if announced else "it takes no more tasks"
                decision.taken_back += [name] if announced else []
        elif _views(unit, workers):
            decision.drain[name] = seen.left_s
        else:
            decision.stop.append(name)
            if seen.state is UnitState.ENDED and seen.from_outside:
                decision.excused.append(name)
    return decision


def _wanted(
    decision: NextSteps, unit: Unit, seen: Observation, now: float, start_timeout: float
) -> None:
    restarting = unit.connected_at is not None and unit.missing_since is not None
    if unit.phase is Phase.DRAINING:
        decision.resume.append(unit.name)  # the scheduler decides if it can resume
    elif seen.state is UnitState.ENDED:
        # A unit whose walltime was over before its workers connected has failed to start.
        expired = unit.connected_at is None and seen.left_s == 0
        outside = unit.dismissed or (seen.from_outside and not expired)
        reason, memory = seen.reason or "it ended", seen.out_of_memory
        decision.lost.append(Loss(unit.name, reason, outside, ended=True, out_of_memory=memory))
    elif restarting and in_crash_loop(unit.starts, now):
        # A Nanny restarts its own worker, so the unit itself never exits.
        decision.lost.append(Loss(unit.name, "its worker kept exiting"))
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
    """Return whether the backend may soon report how a unit with a missing worker stopped."""
    assert unit.missing_since is not None
    older = seen.at is not None and seen.at < unit.missing_since
    return older and now - unit.missing_since < OUTDATED_LIMIT_S


def _walltime(decision: NextSteps, unit: Unit, seen: Observation, margin: Margin | None) -> None:
    if margin is None or seen.left_s is None or seen.state is not UnitState.RUNNING:
        return
    if seen.left_s < margin.stop_s:
        decision.leave[unit.name] = WALLTIME
    elif seen.left_s < margin.renew_s and not unit.renewed:
        decision.renew.append(unit.name)


def _views(unit: Unit, workers: Mapping[str, WorkerView]) -> list[WorkerView]:
    return [workers[name] for name in unit.worker_names if name in workers]


def choose_victims(
    candidates: Iterable[UnitName],
    count: int,
    units: Mapping[UnitName, Unit],
    workers: Mapping[str, WorkerView],
) -> list[UnitName]:
    """Choose ``count`` units to remove from a pool.
    The order is: not launched, not connected, idle, least work. Among equals, units with the fewest
    bytes of results come first.
    """

    def burden(name: UnitName) -> tuple[int, float, int, int]:
        unit = units.get(name)
        if unit is None:
            return (0, 0.0, 0, 0)
        here = _views(unit, workers)
        if not here:
            return (1, 0.0, 0, 0)
        processing = sum(view.processing for view in here)
        occupancy = sum(view.occupancy for view in here)
        return (3 if processing else 2, occupancy, processing, sum(view.nbytes for view in here))

    return sorted(candidates, key=burden)[: max(0, count)]


def backoff_s(failures: int) -> float:
    """Return the seconds to wait before the next start, after ``failures`` failures in a row."""
    return 0.0 if failures == 0 else min(MAX_BACKOFF_S, 0.5 * 2 ** (failures - 1))


def in_crash_loop(starts: Iterable[float], now: float) -> bool:
    """Return whether start times (monotonic seconds) form a crash loop."""
    recent = [start for start in starts if now - start < CRASH_LOOP_WINDOW_S]
    return len(recent) >= CRASH_LOOP_STARTS
