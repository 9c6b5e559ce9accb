"""Explanations of tasks and pools: the facts that they are made of, and sentences with the states,
the reasons and hints. Times are in seconds.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any, NamedTuple

from scalable.errors import ClusterError, NoWorkersError
from scalable.harmless import short_name
from scalable.model import PoolStatus
from scalable.model.codec import Noun
from scalable.model.overview import RunningTask
from scalable.protocol.pools import UNTAGGED, fits, known_tags, shown
from scalable.units import counted, format_duration
from scalable.views.tables import counts_in_words


class State(StrEnum):
    """State of a task or of a pool.
    A ``queued`` task has its inputs, and a ``blocked`` one waits for them. A pool is ``waiting``
    for workers, or ``ready`` if no task needs more of them.
    """

    QUEUED = "queued"
    BLOCKED = "blocked"
    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    UNKNOWN = "unknown"
    READY = "ready"


class Reason(StrEnum):
    """Machine-readable reason for a state."""

    # Of pools, and of tasks that wait for a worker
    NO_POOL = "no-pool"
    NO_MANAGER = "no-manager"
    MANAGER_STARTS = "manager-starts"
    MANAGER_LOST = "manager-lost"
    MANAGER_FAILS = "manager-fails"
    BUDGET = "budget"
    EMPTY = "empty"
    ADAPTIVE = "adaptive"
    LAUNCHING = "launching"
    PLACE = "place"
    WALLTIME = "walltime"
    LEAVING = "leaving"
    PAUSED = "paused"
    ENDING = "ending"
    READY = "ready"
    # Of queued and blocked tasks
    DEPENDENCIES = "dependencies"
    RESOURCES = "resources"
    SLOTS = "slots"
    RESTRICTION = "restriction"
    FULL = "full"
    PRIORITY = "priority"
    BACKOFF = "backoff"
    HELD_SLOT = "held-slot"
    BACKLOG = "backlog"
    ARGUMENTS = "arguments"
    # Of other tasks
    RUNNING = "running"
    NESTED = "nested"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Explanation(Noun):
    """State of a task, of several similar tasks, or of a pool, with the reason."""

    #: Key of the task, words for several tasks, or tag of the pool.
    about: str
    #: A :class:`State`, and a :class:`Reason`.
    state: str
    reason: str
    #: State and reason in one sentence, without a full stop.
    sentence: str
    #: Hint how to change the state; empty if there is nothing to do.
    advice: str = ""
    #: Facts behind the sentence, as plain JSON values. Times are in seconds.
    details: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.sentence}; {self.advice}" if self.advice else self.sentence

    def __repr__(self) -> str:
        return f"<Explanation: {self}>"


@dataclass(frozen=True)
class Explanations(Noun):
    """Explanations of pools, and of unfinished tasks grouped by reason, the oldest first."""

    pools: tuple[Explanation, ...] = ()
    tasks: tuple[Explanation, ...] = ()

    def __iter__(self) -> Iterator[Explanation]:
        return iter((*self.pools, *self.tasks))

    def __str__(self) -> str:
        return "\n".join(map(str, self))

    def __repr__(self) -> str:
        return f"<Explanations: {self}>"


# Keys ---------------------------------------------------------------------------------------------

#: UUID or hash in a key, without its first 8 digits.
_HASH = re.compile(r"(?<=[0-9a-f]{8})(?:-?[0-9a-f]{4}){6}[0-9a-f]*")
_CUT = "..."


def short_key(key: str) -> str:
    """Return a key for a sentence, with a UUID or hash cut, that :func:`means_key` still finds."""
    short = short_name(key)
    return _HASH.sub(_CUT, key, count=1).removesuffix(_CUT) if short == key else short


def means_key(name: str, key: str) -> bool:
    """Return whether a name is a prefix of a key, or its prefix and its end with a cut between."""
    head, _, tail = name.partition(_CUT)
    return key.startswith(head) and key.endswith(tail)


# Facts --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SlotHolder(RunningTask):
    """A task that occupies slots of a worker."""

    #: Expected seconds until it finishes, or None if unknown for such tasks.
    left_s: float | None = None
    #: True if it waits for other tasks while it keeps its slots.
    holds: bool = False


@dataclass(frozen=True)
class PoolFacts:
    """Facts about one pool."""

    #: Tag of the pool; "" for the workers without a tag.
    tag: str
    #: Tags of all pools.
    known_tags: tuple[str, ...] = ()
    #: Counts that managers and the scheduler report, or None if there is no such pool.
    status: PoolStatus | None = None
    #: Managers that offer the pool: ``id``, ``state``, and seconds since the last message
    #: (``silent_s``).
    managers: tuple[Mapping[str, Any], ...] = ()
    #: Number of managers of the cluster, whatever they offer.
    attached: int = 0
    #: True if the managers that the cluster starts with have not attached yet.
    awaits_managers: bool = False
    #: Minimum and maximum (None for no limit) of an adaptive pool, otherwise None; and count (None
    #: before the first decision) and reason of its policy's last decision.
    adaptive: tuple[int, int | None] | None = None
    requested: int | None = None
    decision: str = ""
    #: Reason why the budget does not allow growth, or None; ``way_out`` is a hint about it.
    held: str | None = None
    way_out: str = ""
    #: Reason why the cluster is being stopped, or None.
    ending: str | None = None
    #: Name of the cluster for commands in hints; "" for hints in Python.
    cluster_name: str = ""
    #: True if the cluster runs in its own processes, which `scalable manager restart` starts.
    detached: bool = False
    #: Number of desired workers of all pools together; ``max_workers`` limits it.
    wanted_in_all: int = 0
    max_workers: int | None = None
    #: Option of the target that sets ``max_workers``.
    limited_by: str = "max_workers"
    #: Seconds since the first worker that is starting was requested, or None.
    launching_s: float | None = None
    #: Seconds that workers of this pool usually take to start, or None.
    usual_start_s: float | None = None
    #: Reasons why connected workers do not accept tasks any more, by their names.
    leaving: Mapping[str, str] = field(default_factory=dict)
    #: Names of the connected workers that are paused for lack of memory.
    paused: tuple[str, ...] = ()
    #: Taken slots of the connected workers; ``slots`` counts all of them.
    busy_slots: int = 0
    slots: int = 0
    #: Some of the tasks that take slots, the longest running first.
    running: tuple[SlotHolder, ...] = ()
    #: Number of its queued tasks, also of those in clients.
    queued: int = 0


@dataclass(frozen=True)
class UnmetNeed:
    """Requirements of a task that no worker meets."""

    #: Number of slots that the task takes.
    slots: int = 1
    #: Resources that no worker offers and that are not pools.
    not_offered: tuple[str, ...] = ()
    #: Tags of pools whose slots the task needs on one worker, although no worker has all of them.
    apart: tuple[str, ...] = ()
    #: Addresses of the workers to which it is restricted. ``gone`` has the departed ones.
    restricted_to: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    #: Requested resources that the workers to which the task is restricted lack.
    unable: Mapping[str, float] = field(default_factory=dict)


class NextTry(NamedTuple):
    """Next attempt of a failed task: seconds until it, its number of all, and the last error."""

    left_s: float
    number: int
    of: int
    error: str


@dataclass(frozen=True)
class Failure:
    """Failure of a task."""

    #: Name of the exception's class.
    error: str
    message: str
    #: Innermost line of the user's own code in the traceback, or "".
    frame: str = ""
    #: Name or address of the worker, or "".
    worker: str = ""
    #: Number of workers that were lost while they ran the task.
    lost: int = 0
    #: Key of the task that failed first, if this one only needed its result; otherwise "".
    blamed: str = ""


@dataclass(frozen=True)
class TaskFacts:
    """Facts about one task, or about several that wait for the same reason."""

    #: Key of the oldest task.
    key: str
    name: str
    #: Tag of the task; "" for a task without one.
    tag: str
    #: ``needs`` (other tasks), ``no-worker``, ``queued``, ``assigned`` (it waits on a worker),
    #: ``fetching`` (its arguments), ``backoff`` (it is retried later), ``running``, ``done``,
    #: ``failed``, ``cancelled``, ``unknown``, ``backlog`` (it waits in its client), ``held`` (there
    #: too, for an argument), ``lost`` (its result is computed again).
    state: str
    #: Number of tasks.
    count: int = 1
    #: Number of tasks in the bundle; 0 for a single task.
    bundle: int = 0
    #: Seconds for which it has waited or run, or since it finished, or None if unknown.
    since_s: float | None = None
    #: Expected seconds until it finishes, or None.
    left_s: float | None = None
    #: Name of its worker, or "".
    worker: str = ""
    #: Some of the tasks whose results it needs; ``needed`` is the number of all.
    needs: tuple[TaskFacts, ...] = ()
    needed: int = 0
    ask: UnmetNeed = field(default_factory=UnmetNeed)
    next_try: NextTry | None = None
    #: Number of tasks ahead on its worker or in the queue; ``first`` names some.
    before: int = 0
    first: tuple[str, ...] = ()
    #: Number of unfinished tasks that it has submitted. ``child`` is the key of one.
    children: int = 0
    child: str = ""
    #: True if its slots are lent to other tasks while it waits for its children.
    lends: bool = False
    #: Key of the task that has submitted it, if that task is running, otherwise "".
    parent: str = ""
    failure: Failure | None = None
    #: True if the scheduler has forgotten the task, and only its failure is known.
    gone: bool = False
    #: Tags and task names that are similar to the name of an unknown task.
    close: tuple[str, ...] = ()
    #: Name of the cluster for commands in hints; "" for hints in Python.
    cluster_name: str = ""
    #: Facts about the pool of its tag, or None where they do not matter.
    pool: PoolFacts | None = None

    def details(self) -> dict[str, Any]:
        """Return the facts as plain JSON values, without those about the pool."""
        needs = [{n: getattr(each, n) for n in ("key", "name", "state", "worker")}
                 for each in self.needs]  # fmt: skip
        details = asdict(replace(self, needs=(), pool=None)) | {"needs": needs}
        details["next_try"] = self.next_try and self.next_try._asdict()
        del details["pool"]
        return details


# Sentences ----------------------------------------------------------------------------------------

#: No manager is attached to the cluster.
NOBODY = "no manager is attached"
#: The managers that the cluster starts with have not attached yet.
NOT_YET = "its managers are not attached yet"


def words_of_lost(managers: Iterable[str]) -> str:
    """State that managers no longer send heartbeats."""
    return f"manager {', '.join(map(repr, managers))} no longer reports"


class Cause(NamedTuple):
    """Reason why no worker takes a task, as a phrase, and a hint."""

    reason: Reason
    words: str
    advice: str = ""
    #: True if waiting does not help: no worker can ever take the task.
    lasts: bool = False

    def __str__(self) -> str:
        return f"{self.words}; {self.advice}" if self.advice else self.words


# Pools --------------------------------------------------------------------------------------------


def without_workers(pool: PoolFacts) -> Cause | None:  # noqa: PLR0911 - a list of cases
    """Return why a pool has no worker that accepts tasks, or None if it has one.
    The phrase starts with "it", unless the pool does not exist.
    """
    status = pool.status
    if status is None and pool.awaits_managers:
        return Cause(Reason.MANAGER_STARTS, NOT_YET)
    if status is None:
        words = f"no pool {pool.tag!r}; known tags: {known_tags(dict.fromkeys(pool.known_tags))}"
        if not pool.attached:
            words += f"; {NOBODY} to start workers"
            return Cause(Reason.NO_MANAGER, words, "attach a manager with `scalable manager`", True)
        return Cause(Reason.NO_POOL, words, "give a known tag", True)
    if pool.ending is not None:
        words = f"the cluster is stopping: {pool.ending}"
        return Cause(Reason.ENDING, words, "start a cluster, and submit the tasks again")
    if 0 < status.running <= len(pool.paused):
        words = f"all of its workers ({', '.join(pool.paused)}) are paused"
        advice = "give the component more memory, or release results"
        return Cause(Reason.PAUSED, f"{words}: their memory is nearly full", advice)
    if status.running:
        return None
    if pool.held is not None and not status.launching:
        return Cause(Reason.BUDGET, pool.held, pool.way_out)
    if status.reason is not None and not status.launching:
        again = f"{_scale(pool, max(1, status.wanted))} starts workers again"
        return Cause(Reason.MANAGER_FAILS, status.reason, f"remove the cause, then {again}", True)
    return _away(pool, status) or _managers(pool, status) or _arriving(pool, status)


def _away(pool: PoolFacts, status: PoolStatus) -> Cause | None:
    """Return the cause if all connected workers are leaving or suspended, or None if not."""
    if status.suspended and not pool.leaving:
        words = f"its {counted(status.suspended, 'worker is', 'workers are')} suspended"
        words += _in_place(status)
        return Cause(Reason.PLACE, words, "wait until the backend resumes them")
    if not pool.leaving:
        return None
    reasons = "; ".join(dict.fromkeys(filter(None, pool.leaving.values())))
    one = len(pool.leaving) == 1
    coming = f"; {counted(status.launching, 'successor')} starting" if status.launching else ""
    start = "" if status.wanted else _start(pool)
    if "walltime" in reasons:
        words = f"the walltime that {'its only worker has' if one else 'its workers have'} left "
        words += f"is too short for another task ({reasons}){coming}"
        return Cause(Reason.WALLTIME, words, start or "raise the walltime of the target")
    words = f"{'its only worker is' if one else 'all of its workers are'} leaving"
    return Cause(Reason.LEAVING, words + (f": {reasons}" if reasons else "") + coming, start)


def _managers(pool: PoolFacts, status: PoolStatus) -> Cause | None:
    restart = f"`scalable manager restart {pool.cluster_name}` starts it again" * pool.detached
    if pool.awaits_managers:
        return Cause(Reason.MANAGER_STARTS, NOT_YET)
    if not pool.attached:
        return Cause(Reason.NO_MANAGER, f"{NOBODY} to start workers", restart)
    if pool.managers and all(each["state"] == "lost" for each in pool.managers):
        silent = format_duration(min(each["silent_s"] for each in pool.managers))
        words = f"{words_of_lost(each['id'] for each in pool.managers)}, for {silent}"
        return Cause(Reason.MANAGER_LOST, words, restart)
    leaving = [each["id"] for each in pool.managers if each["state"] == "leaving"]
    if leaving and len(leaving) == len(pool.managers) and status.wanted:
        words = f"manager {', '.join(map(repr, leaving))} is leaving and starts no more workers"
        return Cause(Reason.NO_MANAGER, words, "attach another with `scalable manager`")
    return None


def _arriving(pool: PoolFacts, status: PoolStatus) -> Cause:
    reason = Reason.PLACE if status.waiting else Reason.LAUNCHING
    if status.launching:
        words = f"{status.launching} of its workers are starting{_in_place(status)}"
        if pool.launching_s is not None:
            words += f", for {format_duration(pool.launching_s)} now"
        if pool.usual_start_s is not None:
            words += f" (usual: {format_duration(pool.usual_start_s)})"
        return Cause(reason, words)
    if status.wanted:
        words = f"none of its {status.wanted} workers has connected yet{_in_place(status)}"
        return Cause(reason, words)
    if pool.adaptive is None:
        return Cause(Reason.EMPTY, "it has no workers", _start(pool))
    if pool.adaptive[1] == 0:
        words = "its policy cannot start workers: its maximum is 0"
        return Cause(Reason.EMPTY, words, _start(pool))
    if pool.requested is None:
        return Cause(Reason.ADAPTIVE, "it is adaptive, and its policy has not decided yet")
    words = f"it is adaptive, and its policy requests {counted(pool.requested, 'worker')}"
    return Cause(Reason.ADAPTIVE, f"{words}: {pool.decision or 'without a reason'}")


def _in_place(status: PoolStatus) -> str:
    return f" ({status.waiting})" if status.waiting else ""


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


def _full(pool: PoolFacts) -> str:
    """Return a phrase about the tasks that occupy a pool's slots."""
    words = f"all of its {pool.slots} slots are taken" if pool.slots > 1 else "its slot is taken"
    if pool.running:
        first, names = pool.running[0], {task.name for task in pool.running}
        more = f" and {counted(len(names) - 1, 'other name')}" if len(names) > 1 else ""
        since = format_duration(first.since_s)
        words += f", by tasks of {first.name!r}{more}, the oldest for {since}"
        words += f" on worker {first.worker}"
    left = [task.left_s for task in pool.running if task.left_s]
    return words + (f"; one is expected to be free in {format_duration(min(left))}" if left else "")


def _grow(pool: PoolFacts | None) -> str:
    """Return the hint for a task that waits for a slot of a full pool."""
    if pool is None or pool.status is None:
        return ""
    if pool.held is not None:
        return f"{pool.held}; {pool.way_out}"
    if pool.adaptive is not None:
        most = pool.adaptive[1]
        bound = "" if most is None else f", at most {most} workers"
        why = f": {pool.decision}" if pool.decision else ""
        return f"its policy decides on more workers{bound}{why}"
    if most_words := _at_most(pool):
        return f"wait; {most_words}"
    return f"wait, or add workers: {_scale(pool, pool.status.wanted + 1)}"


def explain_pool(pool: PoolFacts) -> Explanation:
    """Return the explanation of a pool: why tasks wait for it, or its load."""
    cause = without_workers(pool)
    name, details = shown(pool.tag), asdict(pool)
    if cause is not None:
        failed = cause.reason in (Reason.MANAGER_FAILS, Reason.NO_POOL)
        state = State.FAILED if failed else State.WAITING
        words = f"{name} has no worker that takes tasks: {cause.words}"
        words = cause.words if pool.status is None else words
        return Explanation(pool.tag, state, cause.reason, words, cause.advice, details)
    assert pool.status is not None
    workers = counted(pool.status.running, "worker")
    if pool.queued and pool.busy_slots >= pool.slots:
        queued = counted(pool.queued, "task is queued", "tasks are queued")
        words = f"{name} is full: {_full(pool)}; {queued}"
        return Explanation(pool.tag, State.WAITING, Reason.FULL, words, _grow(pool), details)
    words = f"{name} has {workers}; {pool.busy_slots} of {pool.slots} slots are taken"
    if pool.status.launching:
        starting = counted(pool.status.launching, "more worker is", "more workers are")
        words += f", and {starting} starting{_in_place(pool.status)}"
    state = State.RUNNING if pool.busy_slots else State.READY
    return Explanation(pool.tag, state, Reason.READY, words, "", details)


# Tasks --------------------------------------------------------------------------------------------

#: Words about needed tasks in states with other names.
_NEEDED = {"assigned": "queued", "no-worker": "queued", "needs": "blocked", "lost": "recomputed"}

#: Hint about tasks that the scheduler has forgotten.
_FAILURES = "`scalable report --failed` lists the failures of a run, also of tasks that are gone"
_FINISHED = "`scalable report` shows the finished tasks of a run, and its cache hits"


def explain_task(task: TaskFacts) -> Explanation:  # noqa: PLR0911 - a list of cases
    """Return the explanation of a task."""
    match task.state:
        case "needs":
            return _needs(task)
        case "no-worker":
            cause = without_worker(task)
            way = " and cannot run:" if cause.lasts else " for"
            return _waits(task, cause.reason, f"{way} {cause.words}", cause.advice)
        case "backoff":
            return _backoff(task)
        case "queued" | "assigned" | "fetching":
            return _assigned(task)
        case "running":
            return _running(task)
        case "backlog" | "held":
            return _in_client(task)
    return _over(task)


def _subject(task: TaskFacts) -> str:
    if task.count > 1:
        return f"{task.count} tasks of {task.name!r}"
    tasks = f" ({counted(task.bundle, 'task')} in a bundle)" if task.bundle else ""
    return f"task {short_key(task.key)}{tasks}"


def _see(task: TaskFacts, key: str) -> str:
    """Return a hint to look up the explanation of another task."""
    if task.cluster_name:
        return f"see `scalable explain {task.cluster_name} {shlex.quote(short_key(key))}`"
    return f"explain task {short_key(key)}"


def _verb(task: TaskFacts, one: str, several: str) -> str:
    return f"{_subject(task)} {one if task.count == 1 else several}"


def _made(
    task: TaskFacts, state: State, reason: Reason, sentence: str, advice: str = ""
) -> Explanation:
    about = task.key if task.count == 1 else _subject(task)
    return Explanation(about, state, reason, sentence, advice, task.details())


def _waits(task: TaskFacts, reason: Reason, words: str, advice: str = "") -> Explanation:
    """Return the explanation of a queued or blocked task. ``words`` follow its state."""
    state = State.BLOCKED if task.state in ("needs", "held") else State.QUEUED
    return _made(task, state, reason, f"{_verb(task, 'is', 'are')} {state}{words}", advice)


def _needs(task: TaskFacts) -> Explanation:
    if not task.needs:  # they have finished meanwhile
        return _waits(task, Reason.DEPENDENCIES, " by other tasks")
    first, states = task.needs[0], [_NEEDED.get(each.state, each.state) for each in task.needs]
    on = f" on worker {first.worker}" if first.worker else ""
    named = f"{short_key(first.key)} ({states[0]}{on})"
    the_first = ", the first" if task.count > 1 else ""
    if len(task.needs) == 1 == task.needed:
        words = f"{the_first} by task {named}"
    else:
        beyond = f"; of the first {len(task.needs)}" if len(task.needs) < task.needed else ""
        told = counts_in_words(Counter(states))
        words = f"{the_first} by {counted(task.needed, 'task')}{beyond}: {told}; one is {named}"
    held = next((need.key for need in task.needs if need.state != "running"), None)
    return _waits(task, Reason.DEPENDENCIES, words, "" if held is None else _see(task, held))


def without_worker(task: TaskFacts) -> Cause:  # noqa: PLR0911 - a list of cases
    """Return why no worker takes a ready task. Only a cause that ``lasts`` is a full clause."""
    ask, pool, tag = task.ask, task.pool, task.tag
    if ask.apart:
        words = f"it needs slots of {' and '.join(map(shown, ask.apart))}, which no worker offers"
        return Cause(Reason.RESOURCES, f"{words} together", "give one tag for each task", True)
    if ask.unable:
        words = f"it is restricted to {', '.join(ask.restricted_to)}, without enough of what it "
        words += f"needs: {dict(ask.unable)}"
        return Cause(Reason.RESTRICTION, words, "drop workers= or the resources", True)
    if ask.gone:
        words = f"worker {ask.gone[0]}, which has left"
        return Cause(Reason.RESTRICTION, words, "submit the task again without workers=")
    if ask.not_offered:
        words = f"resource {ask.not_offered[0]!r}, which no worker offers"
        offer = f"resources={{{ask.not_offered[0]!r}: 1}}"
        return Cause(Reason.RESOURCES, words, f"start a worker with {offer}")
    if pool is None:
        return Cause(Reason.NO_POOL, "a worker")
    status = pool.status
    if status is not None and tag and not fits({tag: ask.slots}, tag, status.slots):
        words = f"it needs more slots than a worker of pool {tag!r} has: {status.slots}"
        advice = "take fewer slots (slots=), or raise slots of the pool"
        return Cause(Reason.SLOTS, words, advice, True)
    cause = without_workers(pool)
    if cause is None:
        words = f"{shown(tag)}: its workers have just connected or take no tasks yet"
        return Cause(Reason.LAUNCHING, words)
    if status is None and cause.lasts:
        return cause
    # A pool whose managers have given up may work again after its count was set.
    return cause._replace(words=f"{shown(tag)}: {cause.words}", lasts=False)


def error_of(task: TaskFacts) -> ClusterError | None:
    """Return the error of a ready task that no worker can ever take, or None."""
    cause = without_worker(task)
    if cause.reason is Reason.MANAGER_FAILS:
        assert task.pool is not None and task.pool.status is not None  # noqa: PT018
        return NoWorkersError(f"{shown(task.tag)} is degraded: {task.pool.status.reason}")
    if not cause.lasts:
        return None
    of_pool = cause.reason in (Reason.NO_POOL, Reason.NO_MANAGER)
    return (NoWorkersError if of_pool else ClusterError)(cause.words)


def _backoff(task: TaskFacts) -> Explanation:
    assert task.next_try is not None
    left_s, number, of, error = task.next_try
    whose = "one's " if task.count > 1 else ""
    words = f": {whose}attempt {number} of {of} starts in {format_duration(left_s)}, after {error}"
    return _waits(task, Reason.BACKOFF, words)


def _assigned(task: TaskFacts) -> Explanation:
    pool = task.pool or PoolFacts(task.tag)
    if task.state == "fetching":
        words = f" on worker {task.worker}: its arguments are being transferred"
        return _waits(task, Reason.ARGUMENTS, words)
    holders = [each for each in pool.running if each.holds]
    way_out = f"add a worker to {shown(task.tag)}, or cancel the task that holds the slot"
    if any(holder.key == task.parent for holder in holders):
        words = f" for a slot of {shown(task.tag)} that task {short_key(task.parent)} holds"
        words += ", which has submitted it and waits for it: neither can continue"
        return _waits(task, Reason.HELD_SLOT, words, way_out)
    cause = None if task.pool is None else without_workers(pool)
    if cause is not None and not pool.running:
        words = f" on worker {task.worker} of {shown(task.tag)}: {cause.words}"
        return _waits(task, cause.reason, words, cause.advice)
    where = f" on worker {task.worker}" if task.worker and task.count == 1 else ""
    words = f"{where} for a slot of {shown(task.tag)}"
    if (pool.running or pool.busy_slots) and task.count == 1:
        words += f": {_full(pool)}"
    if holders and len(holders) == len(pool.running):
        words += f"; task {short_key(holders[0].key)} holds its slot while it waits for other tasks"
        return _waits(task, Reason.HELD_SLOT, words, way_out)
    if task.before:
        first = f", first {short_key(task.first[0])}" if task.first else ""
        words += f"; after {counted(task.before, 'task')} with a higher priority or submitted "
        words += f"earlier{first}"
        return _waits(task, Reason.PRIORITY, words, _grow(task.pool))
    return _waits(task, Reason.FULL, words, _grow(task.pool))


def _in_client(task: TaskFacts) -> Explanation:
    if task.state == "held":
        return _waits(task, Reason.ARGUMENTS, " in its client until its arguments are on a worker")
    pool, whose = task.pool, "its" if task.count == 1 else "their"
    cause = None if pool is None else without_workers(pool)
    if cause is not None:
        words = f" in {whose} client for {shown(task.tag)}: {cause.words}"
        return _waits(task, cause.reason, words, cause.advice)
    words = f" in {whose} client until a slot is free"
    if task.before:
        words += f", after {counted(task.before, 'task')}"
    if pool is not None and pool.running and task.count == 1:
        words += f"; {shown(task.tag)}: {_full(pool)}"
    return _waits(task, Reason.BACKLOG, words, _grow(pool))


def _running(task: TaskFacts) -> Explanation:
    since = "" if task.since_s is None else f" for {format_duration(task.since_s)}"
    words = f"{_verb(task, 'is running', 'are running')} on worker {task.worker}{since}"
    if task.children:
        slot = "its slot is lent to other tasks" if task.lends else "it keeps its slot"
        unfinished = counted(task.children, "unfinished task")
        words += f"; it has submitted {unfinished}, and {slot}"
        return _made(task, State.RUNNING, Reason.NESTED, words, _see(task, task.child))
    if task.left_s is not None:
        words += f"; it is expected to finish in {format_duration(task.left_s)}"
    return _made(task, State.RUNNING, Reason.RUNNING, words)


def _over(task: TaskFacts) -> Explanation:
    since = "" if task.since_s is None else f" {format_duration(task.since_s)} ago"
    where = f" on worker {task.worker}" if task.worker else ""
    match task.state:
        case "done":
            words = f"{_subject(task)} has finished{since}{where}, and its result is available"
            return _made(task, State.DONE, Reason.DONE, words)
        case "failed":
            return _failed(task)
        case "cancelled":
            words = f"{_subject(task)} was cancelled"
            return _made(task, State.CANCELLED, Reason.CANCELLED, words, "submit the task again")
    if task.key in task.close:
        words = f"no task of {short_key(task.key)} is unfinished or has failed: all are done, "
        words += "were cancelled, or were cache hits"
        return _made(task, State.UNKNOWN, Reason.UNKNOWN, words, _FINISHED)
    words = f"no task {short_key(task.key)}: it was never submitted here, it was cancelled, "
    words += "or no client still has a future of it"
    close = f"did you mean {' or '.join(map(repr, task.close))}? " if task.close else ""
    return _made(task, State.UNKNOWN, Reason.UNKNOWN, words, f"{close}{_FAILURES}")


def _failed(task: TaskFacts) -> Explanation:
    failure, failed = task.failure, _verb(task, "has failed", "have failed")
    if failure is None:
        return _made(task, State.FAILED, Reason.FAILED, failed)
    where = ", the last" * (task.count > 1)
    where += f" on worker {failure.worker}" if failure.worker else ""
    what = f"{failure.error}: {failure.message}" if failure.message else failure.error
    if failure.blamed:
        failed = f"{_subject(task)} has failed because it needs task {short_key(failure.blamed)}, "
        failed += "which has failed"
    words = f"{failed}{where}: {what}" + (f" ({failure.frame})" if failure.frame else "")
    if failure.lost:
        words += f"; {counted(failure.lost, 'worker was', 'workers were')} lost while running it"
    advice = _see(task, failure.blamed) if failure.blamed else _FAILURES if task.gone else ""
    return _made(task, State.FAILED, Reason.FAILED, words, advice)
