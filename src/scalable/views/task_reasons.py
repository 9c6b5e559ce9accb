"""Explanations of tasks, each for one task or for several that wait for the same reason."""

from __future__ import annotations

import shlex
from collections import Counter
from dataclasses import asdict
from typing import Any

from scalable.harmless import short_name
from scalable.protocol.pools import fits, shown
from scalable.units import counted, format_duration
from scalable.views import impossible
from scalable.views.explanation import Explanation, Reason, State
from scalable.views.facts import CallFacts, NeededCall
from scalable.views.pool_reasons import full, more_workers, without_workers

#: Words for one needed task and for several, by the state of the needed task.
_NEEDED = {
    "running": ("1 runs", "{} run"),
    "assigned": ("1 waits on a worker", "{} wait on workers"),
    "ready": ("1 waits for a worker", "{} wait for a worker"),
    "waiting": ("1 waits for other tasks itself", "{} wait for other tasks themselves"),
    "failed": ("1 has failed", "{} have failed"),
    "lost": ("1 is computed again", "{} are computed again"),
}

#: Hint about tasks that the scheduler has forgotten.
_FAILURES = "`scalable report --failed` lists the failures of a run, also of tasks that are gone"
_FINISHED = "`scalable report` shows the finished tasks of a run, and its cache hits"


def explain_call(call: CallFacts) -> Explanation:  # noqa: PLR0911 - a list of cases
    """Return the explanation of a task."""
    match call.state:
        case "needs":
            return _needs(call)
        case "no-worker":
            return _no_worker(call)
        case "backoff":
            return _backoff(call)
        case "queued" | "assigned" | "fetching":
            return _assigned(call)
        case "running":
            return _running(call)
        case "backlog" | "held":
            return _in_client(call)
    return _over(call)


def _subject(call: CallFacts) -> str:
    if call.count > 1:
        return f"{call.count} tasks of {call.name!r}"
    calls = f" ({counted(call.bundle, 'task')} in a bundle)" if call.bundle else ""
    return f"task {short_name(call.key)}{calls}"


def _ask(call: CallFacts, key: str) -> str:
    """Return a hint to look up the explanation of another task."""
    if call.cluster_name and short_name(key) == key:
        return f"see `scalable explain {call.cluster_name} {shlex.quote(key)}`"
    return f"explain task {short_name(key)}"


def _verb(call: CallFacts, one: str, several: str) -> str:
    return f"{_subject(call)} {one if call.count == 1 else several}"


def _made(
    call: CallFacts, state: State, reason: Reason, sentence: str, advice: str = ""
) -> Explanation:
    about = call.key if call.count == 1 else _subject(call)
    return Explanation(about, state, reason, sentence, advice, details_of(call))


def _waits(call: CallFacts, reason: Reason, words: str, advice: str = "") -> Explanation:
    """Return the explanation of a waiting task. ``words`` follow the verb in its sentence."""
    return _made(call, State.WAITING, reason, f"{_verb(call, 'waits', 'wait')} {words}", advice)


# Waiting ------------------------------------------------------------------------------------------


def _needs(call: CallFacts) -> Explanation:
    states = Counter(need.state for need in call.needs)
    parts = [
        _NEEDED[state][0] if states[state] == 1 else _NEEDED[state][1].format(states[state])
        for state in _NEEDED
        if states[state]
    ]
    words = f"for the results of {counted(max(1, call.needed), 'task')}"
    if len(call.needs) == 1 == call.needed:
        words = f"for the result of task {_needed(call.needs[0])}"
    elif parts:
        beyond = f" (of the first {len(call.needs)})" if len(call.needs) < call.needed else ""
        words += f"{beyond}: {', '.join(parts)}; the first is {_needed(call.needs[0])}"
    held = [need for need in call.needs if need.state != "running"]
    advice = _ask(call, held[0].key) if held else ""
    return _waits(call, Reason.DEPENDENCIES, words, advice)


def _needed(need: NeededCall) -> str:
    on = f" on worker {need.worker}" if need.worker else ""
    words = {
        "running": f"runs{on}",
        "assigned": f"waits{on}",
        "ready": "waits for a worker",
        "waiting": "waits for other tasks",
        "failed": "has failed",
        "lost": "is computed again",
    }
    return f"{short_name(need.key)}, which {words[need.state]}"


def _no_worker(call: CallFacts) -> Explanation:  # noqa: PLR0911 - a list of cases
    ask, pool, tag = call.ask, call.pool, call.tag
    if len(ask.apart) > 1:
        words = f"and cannot run: {impossible.apart(ask.apart)}"
        return _waits(call, Reason.RESOURCES, words, "give one tag for each task")
    if ask.unable:
        words = f"and cannot run: {impossible.unable(ask.restricted_to, ask.unable)}"
        return _waits(call, Reason.RESTRICTION, words, "drop workers= or the resources")
    if ask.gone:
        words = f"for {impossible.worker_gone(ask.gone[0])}"
        return _waits(call, Reason.RESTRICTION, words, "submit the task again without workers=")
    if ask.not_offered:
        words = f"for {impossible.not_offered(ask.not_offered[0])}"
        offer = f"resources={{{ask.not_offered[0]!r}: 1}}"
        return _waits(call, Reason.RESOURCES, words, f"start a worker with {offer}")
    if pool is None or pool.status is None:
        cause = None if pool is None else without_workers(pool)
        if cause is None:
            return _waits(call, Reason.NO_POOL, "for a worker")
        if cause.reason is Reason.MANAGER_STARTS:
            return _waits(call, cause.reason, f"for {shown(tag)}: {cause.words}")
        return _waits(call, cause.reason, f"and cannot run: {cause.words}", cause.advice)
    if tag and not fits({tag: ask.slots}, tag, pool.status.slots):
        words = f"and cannot run: {impossible.too_many_slots(tag, pool.status.slots)}"
        return _waits(
            call, Reason.SLOTS, words, "take fewer slots (slots=), or raise slots of the pool"
        )
    cause = without_workers(pool)
    if cause is None:
        words = f"for {shown(tag)}: its workers have just connected or take no tasks yet"
        return _waits(call, Reason.LAUNCHING, words)
    return _waits(call, cause.reason, f"for {shown(tag)}: {cause.words}", cause.advice)


def _backoff(call: CallFacts) -> Explanation:
    coming = call.next_try
    if coming is None:
        return _waits(call, Reason.BACKOFF, "before its retry")
    words = f"{format_duration(coming.left_s)} before attempt {coming.number} of {coming.of}"
    return _waits(call, Reason.BACKOFF, f"{words}: {coming.error}")


def _assigned(call: CallFacts) -> Explanation:
    pool = call.pool
    if call.state == "fetching":
        words = f"on worker {call.worker} for its arguments, which are being transferred"
        return _waits(call, Reason.ARGUMENTS, words)
    holders = [] if pool is None else [r for r in pool.running if r.holds]
    for holder in holders:
        if holder.key == call.parent:
            words = f"for a slot of {shown(call.tag)} that task {short_name(holder.key)} holds"
            words += ", which has submitted it and waits for it: neither can continue"
            return _waits(call, Reason.HELD_SLOT, words, _way_out_of_held(call))
    cause = None if pool is None else without_workers(pool)
    if cause is not None and pool is not None and not pool.running:
        words = f"on worker {call.worker} of {shown(call.tag)}: {cause.words}"
        return _waits(call, cause.reason, words, cause.advice)
    where = f"on worker {call.worker} " if call.worker and call.count == 1 else ""
    words = f"{where}for a slot of {shown(call.tag)}"
    if pool is not None and (pool.running or pool.busy_slots):
        words += f": {full(pool)}"
    if holders and len(holders) == len(pool.running if pool else ()):
        words += (
            f"; task {short_name(holders[0].key)} holds its slot while it waits for other tasks"
        )
        return _waits(call, Reason.HELD_SLOT, words, _way_out_of_held(call))
    advice = "" if pool is None or pool.status is None else more_workers(pool)
    if call.before:
        first = f", first {short_name(call.first[0])}" if call.first else ""
        words += f"; {counted(call.before, 'task')} with a higher priority or submitted earlier"
        words += f" {'goes' if call.before == 1 else 'go'} before it{first}"
        return _waits(call, Reason.PRIORITY, words, advice)
    return _waits(call, Reason.FULL, words, advice)


def _way_out_of_held(call: CallFacts) -> str:
    return f"add a worker to {shown(call.tag)}, or cancel the task that holds the slot"


def _in_client(call: CallFacts) -> Explanation:
    if call.state == "held":
        return _waits(call, Reason.ARGUMENTS, "in its client until its arguments are on a worker")
    pool = call.pool
    cause = None if pool is None else without_workers(pool)
    if cause is not None:
        words = f"in its client for {shown(call.tag)}: {cause.words}"
        return _waits(call, cause.reason, words, cause.advice)
    words = "in its client until a slot is free"
    if call.before:
        words += f"; {counted(call.before, 'task')} {'is' if call.before == 1 else 'are'} before it"
    if pool is not None and pool.running:
        words += f"; {shown(call.tag)}: {full(pool)}"
    advice = "" if pool is None or pool.status is None else more_workers(pool)
    return _waits(call, Reason.BACKLOG, words, advice)


# Running and finished -----------------------------------------------------------------------------


def _running(call: CallFacts) -> Explanation:
    since = "" if call.since_s is None else f" for {format_duration(call.since_s)}"
    words = f"{_verb(call, 'runs', 'run')} on worker {call.worker}{since}"
    if call.children:
        slot = (
            "its slot is lent to other tasks" if call.lends else "it keeps its slot in the meantime"
        )
        words += f"; it has submitted {counted(call.children, 'task')} that have not finished"
        words += f", and {slot}"
        if call.children == 1:
            words = words.replace("that have not finished", "that has not finished")
        return _made(
            call,
            State.RUNNING,
            Reason.NESTED,
            words,
            _ask(call, call.child),
        )
    if call.left_s is not None:
        words += f"; it is expected to finish in {format_duration(call.left_s)}"
    return _made(call, State.RUNNING, Reason.RUNNING, words)


def _over(call: CallFacts) -> Explanation:
    since = "" if call.since_s is None else f" {format_duration(call.since_s)} ago"
    where = f" on worker {call.worker}" if call.worker else ""
    match call.state:
        case "done":
            words = f"{_subject(call)} has finished{since}{where}, and its result is available"
            return _made(call, State.DONE, Reason.DONE, words)
        case "failed":
            return _failed(call)
        case "cancelled":
            words = f"{_subject(call)} was cancelled"
            return _made(call, State.CANCELLED, Reason.CANCELLED, words, "submit the task again")
    if call.key in call.close:
        words = f"no task of {short_name(call.key)} waits, runs or has failed: all have finished, "
        words += "were cancelled, or were cache hits"
        return _made(call, State.UNKNOWN, Reason.UNKNOWN, words, _FINISHED)
    words = f"no task {short_name(call.key)}: it was never submitted here, it was cancelled, "
    words += "or no client still has a future of it"
    close = f"did you mean {' or '.join(map(repr, call.close))}? " if call.close else ""
    return _made(call, State.UNKNOWN, Reason.UNKNOWN, words, f"{close}{_FAILURES}")


def _failed(call: CallFacts) -> Explanation:
    failure = call.failure
    if failure is None:
        return _made(call, State.FAILED, Reason.FAILED, _verb(call, "has failed", "have failed"))
    last = ", the last" if call.count > 1 else ""
    where = f"{last} on worker {failure.worker}" if failure.worker else last
    what = f"{failure.error}: {failure.message}" if failure.message else failure.error
    words = f"{_verb(call, 'has failed', 'have failed')}{where}: {what}"
    if failure.blamed:
        words = f"{_subject(call)} has failed because it needs task {short_name(failure.blamed)}, "
        words += "which has "
        words += f"failed{where}: {what}"
    if failure.frame:
        words += f" ({failure.frame})"
    if failure.lost:
        words += f"; {counted(failure.lost, 'worker')} were lost while they ran it"
        if failure.lost == 1:
            words = words.replace("1 worker were lost while they", "1 worker was lost while it")
    advice = _ask(call, failure.blamed) if failure.blamed else _FAILURES if call.gone else ""
    return _made(call, State.FAILED, Reason.FAILED, words, advice)


def details_of(call: CallFacts) -> dict[str, Any]:
    """Return a task's facts as plain JSON values, without the facts about its pool."""
    details = asdict(call)
    del details["pool"]
    return details
