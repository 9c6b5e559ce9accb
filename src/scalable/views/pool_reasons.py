"""Reasons why a pool has no worker for a task, and explanations of pools."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, NamedTuple

from scalable.model import PoolStatus
from scalable.protocol.pools import UNTAGGED, shown
from scalable.units import counted, format_duration
from scalable.views import impossible
from scalable.views.explanation import Explanation, Reason, State
from scalable.views.facts import AdaptiveFacts, PoolFacts, RunningTask


class BusyCause(NamedTuple):
    """Reason why a pool has no free worker, as a phrase that starts with "it", and a hint."""

    reason: Reason
    words: str
    advice: str = ""

    def __str__(self) -> str:
        return f"{self.words}; {self.advice}" if self.advice else self.words


def without_workers(pool: PoolFacts) -> BusyCause | None:  # noqa: PLR0911 - a list of cases
    """Return why a pool has no worker that accepts tasks, or None if it has one."""
    status = pool.status
    if status is None and pool.awaits_managers:
        return BusyCause(Reason.MANAGER_STARTS, impossible.NOT_YET)
    if status is None:
        words = impossible.no_pool(pool.tag, pool.known_tags, managed=bool(pool.attached))
        if not pool.attached:
            return BusyCause(Reason.NO_MANAGER, words, "attach a manager with `scalable manager`")
        return BusyCause(Reason.NO_POOL, words, "give a known tag")
    if pool.ending is not None:
        words = f"the cluster is stopping: {pool.ending}"
        return BusyCause(Reason.ENDING, words, "start a cluster, and submit the tasks again")
    if status.running and (away := _all_away(pool, status)):
        return away
    if status.running:
        return None
    if pool.held is not None and not status.launching:
        return BusyCause(Reason.BUDGET, pool.held, pool.way_out)
    if status.reason is not None and not status.launching:
        return BusyCause(Reason.MANAGER_FAILS, status.reason, _again(pool, status))
    return _away(pool, status) or _managers(pool, status) or _arriving(pool, status)


def _away(pool: PoolFacts, status: PoolStatus) -> BusyCause | None:
    """Return the cause if all connected workers are leaving or suspended, or None if not."""
    if status.suspended and not pool.leaving:
        words = f"{counted(status.suspended, 'worker')} of it, all that it has, are suspended"
        return BusyCause(
            Reason.PLACE, words + _in_place(status), "wait until the backend resumes these workers"
        )
    if not pool.leaving:
        return None
    reasons = list(dict.fromkeys(worker.reason for worker in pool.leaving if worker.reason))
    nearly = any("walltime" in reason for reason in reasons)
    why = f": {'; '.join(reasons)}" if reasons else ""
    one = len(pool.leaving) == 1
    words = f"{'its only worker is' if one else 'all of its workers are'} leaving{why}"
    if nearly:
        words = f"the walltime that {'its only worker has' if one else 'its workers have'} left "
        words += f"is too short for another task ({'; '.join(reasons)})"
    coming = f"; {counted(status.launching, 'successor')} starting" if status.launching else ""
    advice = "raise the walltime of the target" if nearly else ""
    if not status.wanted:
        advice = _start(pool)
    return BusyCause(Reason.WALLTIME if nearly else Reason.LEAVING, words + coming, advice)


def _all_away(pool: PoolFacts, status: PoolStatus) -> BusyCause | None:
    """Return the cause if all running workers are paused, otherwise None."""
    if len(pool.paused) < status.running:
        return None
    words = f"all of its workers ({', '.join(pool.paused)}) are paused: their memory is nearly full"
    return BusyCause(Reason.PAUSED, words, "give the component more memory, or release results")


def _managers(pool: PoolFacts, status: PoolStatus) -> BusyCause | None:
    if pool.awaits_managers:
        return BusyCause(Reason.MANAGER_STARTS, impossible.NOT_YET)
    if not pool.attached:
        return BusyCause(Reason.NO_MANAGER, f"{impossible.NOBODY} to start workers", _restart(pool))
    if pool.managers and all(manager.state == "lost" for manager in pool.managers):
        silent = min(manager.silent_s for manager in pool.managers)
        ids = [manager.id for manager in pool.managers]
        words = f"{impossible.words_of_lost(ids)}, for {format_duration(silent)}"
        return BusyCause(Reason.MANAGER_LOST, words, _restart(pool))
    leaving = [m.id for m in pool.managers if m.state == "leaving"]
    if leaving and len(leaving) == len(pool.managers) and status.wanted:
        words = f"manager {', '.join(map(repr, leaving))} is leaving and starts no more workers"
        return BusyCause(Reason.NO_MANAGER, words, "attach another with `scalable manager`")
    return None


def _arriving(pool: PoolFacts, status: PoolStatus) -> BusyCause:
    place = _in_place(status)
    if status.launching:
        words = f"{status.launching} of its workers are starting{place}"
        if pool.launching_s is not None:
            words += f", for {format_duration(pool.launching_s)} now"
        if pool.usual_start_s is not None:
            words += f" (usual: {format_duration(pool.usual_start_s)})"
        return BusyCause(Reason.PLACE if status.waiting else Reason.LAUNCHING, words)
    if status.wanted:
        words = f"none of its {status.wanted} workers has connected yet{place}"
        return BusyCause(Reason.PLACE if status.waiting else Reason.LAUNCHING, words)
    if pool.adaptive is not None:
        return _adaptive(pool, pool.adaptive)
    return BusyCause(Reason.EMPTY, "it has no workers", _start(pool))


def _adaptive(pool: PoolFacts, adaptive: AdaptiveFacts) -> BusyCause:
    if adaptive.maximum == 0:
        return BusyCause(
            Reason.EMPTY, "its policy cannot start workers: its maximum is 0", _start(pool)
        )
    if adaptive.workers is None:
        return BusyCause(Reason.ADAPTIVE, "it is adaptive, and its policy has not decided yet")
    words = f"it is adaptive, and its policy requests {counted(adaptive.workers, 'worker')}"
    return BusyCause(Reason.ADAPTIVE, f"{words}: {adaptive.reason or 'without a reason'}")


def _in_place(status: PoolStatus) -> str:
    return f" ({status.waiting})" if status.waiting else ""


def _restart(pool: PoolFacts) -> str:
    return f"`scalable manager restart {pool.cluster_name}` starts it again" * pool.detached


def _scale(pool: PoolFacts, count: int) -> str:
    """Return the command or method call that sets a pool's worker count."""
    if pool.cluster_name and pool.tag != UNTAGGED:
        return f"`scalable scale {pool.cluster_name} {pool.tag}={count}`"
    return f"scale({pool.tag!r}, {count})" if pool.tag != UNTAGGED else f"scale({count})"


def _start(pool: PoolFacts) -> str:
    return _at_most(pool) or f"start some with {_scale(pool, 1)}"


def _at_most(pool: PoolFacts) -> str:
    """Return a hint if the target's limit forbids another worker, otherwise ""."""
    if pool.max_workers is None or pool.wanted_in_all < pool.max_workers:
        return ""
    own = 0 if pool.status is None else pool.status.wanted
    words = f"{pool.limited_by} {pool.max_workers} of the target allows no more workers: "
    fewer = ", or give another pool fewer" if pool.wanted_in_all > own else ""
    return f"{words}raise it in the manifest{fewer}"


def _again(pool: PoolFacts, status: PoolStatus) -> str:
    return f"remove the cause, then {_scale(pool, max(1, status.wanted))} starts workers again"


def full(pool: PoolFacts) -> str:
    """Return a phrase about the tasks that occupy a pool's slots."""
    words = f"all of its {pool.slots} slots are taken" if pool.slots > 1 else "its slot is taken"
    return words + _by(pool.running) + _free_in(pool.running)


def _by(running: tuple[RunningTask, ...]) -> str:
    if not running:
        return ""
    first = running[0]
    names = list(dict.fromkeys(call.name for call in running))
    more = f" and {len(names) - 1} other tasks" if len(names) > 1 else ""
    since = format_duration(first.since_s)
    return f", by tasks of {names[0]!r}{more}, the oldest for {since} on worker {first.worker}"


def _free_in(running: tuple[RunningTask, ...]) -> str:
    left = [call.left_s for call in running if call.left_s is not None]
    return f"; one is expected to be free in {format_duration(min(left))}" if left else ""


def explain_pool(pool: PoolFacts) -> Explanation:
    """Return the explanation of a pool: why tasks wait for it, or its load."""
    cause = without_workers(pool)
    name, details = shown(pool.tag), details_of(pool)
    if cause is not None:
        failed = cause.reason in (Reason.MANAGER_FAILS, Reason.NO_POOL)
        state = State.FAILED if failed else State.WAITING
        words = f"{name} has no worker that takes tasks: {cause.words}"
        words = cause.words if pool.status is None else words
        return Explanation(pool.tag, state, cause.reason, words, cause.advice, details)
    assert pool.status is not None
    workers = counted(pool.status.running, "worker")
    if pool.waiting and pool.busy_slots >= pool.slots:
        calls = counted(pool.waiting, "task")
        words = f"{name} is full: {full(pool)}; {calls} wait"
        return Explanation(pool.tag, State.WAITING, Reason.FULL, words, _grow(pool), details)
    words = f"{name} has {workers}; {pool.busy_slots} of {pool.slots} slots are taken"
    if pool.status.launching:
        starting = counted(pool.status.launching, "more worker is", "more workers are")
        words += f", and {starting} starting"
        words += _in_place(pool.status)
    state = State.RUNNING if pool.busy_slots else State.READY
    return Explanation(pool.tag, state, Reason.READY, words, "", details)


def _grow(pool: PoolFacts) -> str:
    assert pool.status is not None
    adaptive = pool.adaptive
    if pool.held is not None:
        return f"{pool.held}; {pool.way_out}"
    if adaptive is not None:
        bound = "" if adaptive.maximum is None else f", at most {adaptive.maximum} workers"
        why = f": {adaptive.reason}" if adaptive.reason else ""
        return f"its policy decides on more workers{bound}{why}"
    if most := _at_most(pool):
        return f"wait; {most}"
    return f"wait, or add workers: {_scale(pool, pool.status.wanted + 1)}"


def more_workers(pool: PoolFacts) -> str:
    """Return the hint for a task that waits for a slot of a full pool."""
    return _grow(pool)


def details_of(pool: PoolFacts) -> dict[str, Any]:
    """Return the facts about a pool as plain JSON values."""
    return asdict(pool)
