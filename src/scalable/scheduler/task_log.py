"""Scheduler plugin that keeps one record for each task, and sends transitions to listeners."""

from __future__ import annotations

import ast
import heapq
import logging
import pickle
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from operator import attrgetter
from typing import Any, NamedTuple

from distributed import Scheduler, SchedulerPlugin
from distributed.scheduler import KilledWorker, TaskState, WorkerState

from scalable.dask_compat.scheduler import LostWorker
from scalable.dask_compat.tasks import failed_try, is_given_back
from scalable.model import FailedCall, FailureDetails
from scalable.model.cache_outcomes import CacheOutcome, OutcomeKind
from scalable.model.failures import OUT_OF_MEMORY
from scalable.protocol.failures import LOSSES, LostWorkers, is_given_up
from scalable.protocol.measured import (
    BUNDLE_ANNOTATION,
    PROFILE,
    TASK_ANNOTATION,
    Measured,
    measured,
)
from scalable.protocol.operations import KNOWN_ANNOTATION
from scalable.runs.calls import RetryReason
from scalable.scheduler.worker_records import WorkerRecords

logger = logging.getLogger("scalable.scheduler")

#: Dask's states of a task that is queued or running.
READY = frozenset({"processing", "queued", "no-worker"})
#: Dask's states of a finished task.
ENDED = frozenset({"memory", "erred"})
#: Number of records kept of tasks that the scheduler has forgotten.
KEPT_ENDED = 10_000
#: Value of :attr:`LoggedTask.slots` for a task without a tag: one slot of any worker.
UNTAGGED_SLOTS = (("", 1),)


class LoggedTask:
    """Record of one task of Dask's scheduler, with the name, tag and slots that its client set."""

    # Every task has a record, and most values keep their defaults: those of the class cost nothing
    # when ten thousand tasks arrive at once. What few readers need is read when it is needed.

    #: Dask's state when the task was last ready, released or found without having been submitted,
    #: "" before, and number of earlier attempts.
    state, tries = "", 0
    #: Epoch seconds since which the task is queued. None if blocked, or ready before the task log
    #: was made.
    ready_at: float | None = None
    #: Why the task runs again, and the name of a lost worker. None for the first run.
    again: tuple[RetryReason, str | None] | None = None
    #: The same for its last repetition, also once a reader has taken note of it.
    repeated: tuple[RetryReason, str | None] | None = None
    #: Last values of the profile, and facts about the failure, of its last attempt.
    profile: tuple[Any, ...] | None = None
    failure: dict[str, Any] | None = None
    #: Workers that were lost with it, attempts that exceeded the memory and the walltime, and
    #: failures that its retry policy covered.
    lost_with: tuple[str, ...] = ()
    too_large = cut_off = retries = 0
    #: Its next attempt, while it waits for it.
    held: Any = None
    #: For a bundle: how it was lost, and whether its suspected task has started.
    lost: LostBundle | None = None
    suspect_began = False
    #: Keys of the task that submitted it, and of unfinished tasks that it has submitted.
    parent: Any = None
    children: dict[Any, None] | None = None
    #: For the counts by name: row, phase, and number of tasks.
    counted: tuple[Any, int, int] | None = None
    #: True if it was seen running. Readers of the workers' heartbeats set it.
    seen_running = False
    #: For the recorder: True from its first row to its last, the end of its last row with the task
    #: that it waited for, whether its row about running is written, and why it runs again, until
    #: it is known to have started.
    recorded, after, shown_blocked, shown_running = False, "", False, False
    ran_for: tuple[RetryReason, str | None] | None = None
    #: Bundle annotation, None unless the task is a bundle (a batch of tasks sent as one).
    bundle: Mapping[str, Any] | None = None
    #: True if the task only passes on a cached result and computes nothing.
    is_known = False
    _name: str | None = None
    _slots: tuple[tuple[str, int], ...] | None = None

    def __init__(self, task: TaskState) -> None:
        self.key: Any = task.key
        self.task = task
        if task.annotations:
            self._read(task.annotations)

    def renew(self, task: TaskState) -> None:
        """Read the annotations of a task that a client has submitted again."""
        self.task = task
        self.bundle = self._name = self._slots = None
        self.is_known = False
        self._read(task.annotations or {})

    def _read(self, annotations: Mapping[str, Any]) -> None:
        if TASK_ANNOTATION in annotations:
            self._name = annotations[TASK_ANNOTATION]
        if BUNDLE_ANNOTATION in annotations:
            self.bundle = annotations[BUNDLE_ANNOTATION]
        if KNOWN_ANNOTATION in annotations:
            self.is_known = True

    def begin_again(self, reason: RetryReason, worker: str | None = None) -> None:
        self.tries += 1
        self.again = self.repeated = reason, worker

    def routed_anew(self) -> None:
        """Drop the cached slots after the task was routed to another pool."""
        self._slots = None

    @property
    def name(self) -> str:
        return str(self._name or self.task.prefix.name)

    @property
    def tag(self) -> str | None:
        return next(iter(self.task.resource_restrictions or ()), None)

    @property
    def slots(self) -> tuple[tuple[str, int], ...]:
        """Tag and number of slots of each resource that the task takes."""
        if self._slots is None:
            asked = self.task.resource_restrictions
            self._slots = (
                tuple([(str(tag), max(1, int(count))) for tag, count in asked.items()])
                if asked
                else UNTAGGED_SLOTS
            )
        return self._slots

    @property
    def calls(self) -> int:
        """Number of tasks that it stands for: 1, or those of the bundle."""
        return 1 if self.bundle is None else int(self.bundle["calls"])

    @property
    def is_cancelled_bundle(self) -> bool:
        """True if a forgotten bundle's tasks are cancelled. Those given back are sent again."""
        return self.bundle is not None and self.seen_running and not is_given_back(self.task)

    @property
    def input_bytes(self) -> int:
        """Total size in bytes of the task's inputs from other tasks."""
        others = self.task.dependencies
        return sum(max(0, other.nbytes) for other in others) if others else 0


class LostBundle(NamedTuple):
    """Number of starts of a lost bundle's tasks, and why and where they were lost."""

    tries: int
    reason: RetryReason
    worker: str | None


class Forgotten(NamedTuple):
    """Facts that remain of a task that the scheduler has forgotten."""

    profile: tuple[Any, ...] | None
    lost: LostBundle | None


@dataclass(slots=True, eq=False)
class EndedTask:
    """Finished task: either its result is in memory, or it failed."""

    call: LoggedTask
    succeeded: bool
    _details: Mapping[str, Any]
    worker: str | None = None
    measured: Measured = field(init=False)
    #: Measurements of the Dask task by their keys in the rows of ``tasks.jsonl``.
    measurements: dict[str, float | None] = field(init=False)
    _failures: tuple[FailedCall, ...] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.measured = measured(self._details.get("startstops"))
        self.measurements = self._measurements(self._details.get("nbytes"))

    def _measurements(self, nbytes: int | None) -> dict[str, float | None]:
        began, ended, transfer_s, cpu_s, peak_memory, *_ = self.measured
        values = {"cpu_s": cpu_s, "peak_memory": peak_memory, "nbytes": nbytes}
        if began is not None and ended is not None:
            values["queued_s"] = self._queued_s(began - transfer_s)
            values["transfer_s"], values["duration_s"] = transfer_s, ended - began
        return values

    def _queued_s(self, until: float) -> float | None:
        ready_at = self.call.ready_at
        return None if ready_at is None else max(0.0, until - ready_at)

    def in_bundle(self) -> Iterator[tuple[str, float, dict[str, float | None]]]:
        """Yield state, finish and measurements of each task of a bundle whose tasks have rows."""
        for state, (began, duration_s, cpu_s, memory) in (self.measured.bundle or {})["rows"]:
            times = {"queued_s": self._queued_s(began), "duration_s": duration_s, "cpu_s": cpu_s}
            yield state, began + duration_s, {**times, "transfer_s": 0.0, "peak_memory": memory}

    @property
    def address(self) -> str | None:
        """Address of the task's worker, or None for a task that never ran."""
        return self._details.get("worker")

    @property
    def is_hit(self) -> bool:
        """True if the task did not run because its result was cached."""
        told = self.measured.remembered if self.measured.bundle is None else ()
        return bool(told) and self.succeeded and all(each.is_hit for each in told)

    @property
    def ran(self) -> bool:
        """True if the task, or a task of the bundle, ran. Only then are its times meaningful."""
        bundle = self.measured.bundle
        return bool(bundle["calls"]) if bundle else not (self.call.is_known or self.is_hit)

    @property
    def failures(self) -> tuple[FailedCall, ...]:
        """Failed tasks, each reported once, without those that failed because of a dependency."""
        if self._failures is None:
            plain = self.succeeded and self.measured.bundle is None
            self._failures = () if plain else tuple(self._failed_calls())
        return self._failures

    def _failed_calls(self) -> list[FailedCall]:
        call, bundle = self.call, self.measured.bundle
        if bundle is not None:
            # Of a single task the number of attempts is known.
            tries = {"tries": call.tries + 1} if call.tries and bundle["calls"] == 1 else {}
            return [
                FailedCall(
                    failure["failure_class"],
                    failure["message"],
                    failure["traceback"],
                    FailureDetails.from_dict({"worker": self.worker, **failure, **tries}),
                    failure.get("position"),
                    failure.get("count", 1),
                )
                for failure in bundle["failures"]
            ]
        if call.task.exception_blame is not call.task:
            return []
        if self.runs_again:
            return []
        name, message = self.failure()
        if call.bundle is not None and name == KilledWorker.__name__:
            error = LostWorkers(call.name, self.worker, LOSSES - 1)
            name, message = LostWorkers.__name__, str(error)
        details = {"worker": self.worker, **(call.bundle or {}), **(self.measured.failure or {})}
        told = FailureDetails.from_dict(details | {"tries": call.tries + 1})
        traceback = self._details.get("traceback_text")
        return [FailedCall(name, message, traceback, told, count=call.calls)]

    @property
    def killed(self) -> bool:
        """True if the task failed because its worker was lost."""
        return not self.succeeded and self.failure()[0] in _OF_LOST_WORKERS

    @property
    def runs_again(self) -> bool:
        """True for a lost bundle whose tasks its client resends."""
        if self.call.bundle is None or not self.killed:
            return False
        losses = self.call.bundle.get("losses", 0)
        return not (self.call.suspect_began and is_given_up(losses + 1, self.failure()[0]))

    def failure(self) -> tuple[str, str]:
        return failure_in(self._details)


class Listener:
    """Base class of objects that receive a task log's events. Subclasses override some methods."""

    def bundle_submitted(self, call: LoggedTask) -> None:
        """Handle a bundle of a client's graph, before :meth:`submitted`."""

    def bundle_ended(self, end: EndedTask) -> None:
        """Handle a bundle that succeeded or failed, before :meth:`ended`."""

    def submitted(self, calls: list[LoggedTask]) -> None:
        """Handle a graph's unfinished tasks of one name and the same resources, not known ones."""

    def waiting(self, call: LoggedTask) -> None:
        """Handle a task that is blocked again, or is new without being submitted."""

    def ready(self, call: LoggedTask) -> None:
        """Handle a task that is now queued or assigned to a worker, or has left the queue."""

    def ended(self, end: EndedTask) -> None:
        """Handle a task that succeeded or failed."""

    def remembered(self, heard: HeardOutcomes) -> None:
        """Handle the cache outcomes of a finished task or of a client."""

    def left(self, call: LoggedTask) -> None:
        """Handle a task that was released before it succeeded or failed."""

    def forgotten(self, call: LoggedTask) -> None:
        """Handle a task that the scheduler forgets: it is not needed, or all tasks are dropped."""

    def worker_added(self, worker: WorkerState) -> None:
        """Handle a worker that has connected."""

    def worker_lost(self, lost: LostWorker) -> None:
        """Handle the loss or retirement of a worker, before its tasks move to other workers."""

    def worker_removed(self, address: str) -> None:
        """Handle the removal of a worker, after its tasks moved to other workers."""

    def closed(self, scheduler: Scheduler) -> None:
        """Handle the closing of the scheduler."""


#: Names of all events: the methods of :class:`Listener`.
EVENTS = tuple(name for name in vars(Listener) if not name.startswith("_"))


class TaskLog(SchedulerPlugin):
    """Scheduler plugin that reads each task transition once and sends events to listeners."""

    name = "scalable-task-log"

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.workers = WorkerRecords(scheduler)
        #: Recorded restarts of tasks by reason.
        self.reruns: Counter[str] = Counter()
        #: Called with a forgotten task that has not succeeded.
        self.on_unfinished: Callable[[TaskState], object] = lambda _: None
        self._calls: dict[Any, LoggedTask] = {}
        #: Keys of the last graph's new tasks, until their first transition, which is not an event.
        #: Dask makes it at once. Looking up the task would take longer than all else of it.
        self._new: set[Any] = set()
        self._ended: OrderedDict[Any, Forgotten] = OrderedDict()
        self._listeners: list[Listener] = []
        self._told: dict[str, list[Callable[[Any], None]]] = {}
        self._subscribe()

    @classmethod
    def of(cls, scheduler: Scheduler) -> TaskLog:
        """Return the task log of a scheduler, adding one if there is none."""
        known = scheduler.plugins.get(cls.name)
        if isinstance(known, cls):
            return known
        made = cls(scheduler)
        scheduler.add_plugin(made)
        return made

    def listen(self, listener: Listener) -> None:
        """Send all future events to a listener, unless it is already registered."""
        if listener not in self._listeners:
            self._listeners.append(listener)
            self._subscribe()

    def _subscribe(self) -> None:
        for event in EVENTS:
            unused = getattr(Listener, event)
            self._told[event] = [
                getattr(listener, event)
                for listener in self._listeners
                if getattr(type(listener), event) is not unused
            ]

    # Tasks --------------------------------------------------------------------------------------

    def update_graph(self, scheduler: Scheduler, *, tasks: Iterable[Any], **_: Any) -> None:
        """Read the annotations of a graph's tasks again, since they may have changed."""
        calls, known, new = self._calls, scheduler.tasks, set[Any]()
        self._new = new
        alike: dict[tuple[str, tuple[str, ...]], list[LoggedTask]] = {}
        for key in tasks:
            task = known.get(key)
            if task is None:
                continue
            call = calls.get(key)
            if call is None:
                call = calls[key] = LoggedTask(task)
                if not call.is_known:
                    new.add(key)
            else:
                call.renew(task)
            if call.bundle is not None:
                _tell(self._told["bundle_submitted"], call)
            if not call.is_known and task.state not in ENDED:
                same = call.name, tuple(task.resource_restrictions or ())
                alike.setdefault(same, []).append(call)
        for submitted in alike.values():
            _tell(self._told["submitted"], submitted)

    def nest(self, parent: Any, keys: Iterable[Any]) -> None:
        """Record that a running task (``parent``) has submitted the tasks with these keys."""
        above = self.find(parent)
        for key in keys:
            call = self.find(key)
            if above is not None and call is not None and call.parent is None and call is not above:
                call.parent = parent
                above.children = above.children or {}
                above.children[key] = None

    def transition(self, key: Any, start: str, finish: str, *_: Any, **details: Any) -> None:
        # Without a worker for it, a task still waits, until the next transition.
        if start == finish or (finish == "waiting" and key in self._new):
            self._new.discard(key)
            return
        if finish == "released" and start in ENDED:
            self._released(key, start)
            return
        call = self._calls.get(key) or self._enter(key)
        if finish == "waiting":
            if call.state or call.is_known:  # otherwise the task was just submitted
                _tell(self._told["waiting"], call)
        elif finish in READY:
            if start not in READY:
                call.state, call.ready_at = finish, time.time()
                if call.profile is not None:
                    call.profile = call.failure = None
                _tell(self._told["ready"], call)
            elif start == "queued":
                call.state = finish
                _tell(self._told["ready"], call)
        elif finish == "forgotten":
            self._forget(call)
        elif finish == "erred" or (finish == "memory" and start == "processing"):
            worker = self.workers.name_at(details.get("worker"))
            self._end(call, EndedTask(call, finish == "memory", details, worker))
        else:
            call.state = finish
            if failed_try(details):
                call.begin_again(RetryReason.RETRIES)
            _tell(self._told["left"], call)

    def _end(self, call: LoggedTask, end: EndedTask) -> None:
        call.seen_running = False
        state = "succeeded" if end.succeeded else "failed"
        told = (call.name, call.tag, end.worker, state, end.measured.ended or time.time())
        call.profile = (*told, *map(end.measurements.get, PROFILE[len(told) :]))
        if call.bundle is not None:
            _tell(self._told["bundle_ended"], end)
        elif not end.succeeded and end.failures:
            known = end.failures[0].details
            names = ("arguments", "worker", "tries")
            call.failure = {name: getattr(known, name) for name in names}
        _tell(self._told["ended"], end)
        if outcomes := end.measured.remembered:
            heard = HeardOutcomes(call.name, call.tag, outcomes, str(call.key))
            _tell(self._told["remembered"], heard)

    def bundle_stopped(self, key: Any, timings: list[Any], worker: str) -> None:
        """Handle a bundle as finished although its last task, which was stopped, still runs."""
        if (call := self.find(key)) is not None and call.profile is None:
            details = {"startstops": timings}
            self._end(call, EndedTask(call, True, details, self.workers.name_at(worker)))

    def _released(self, key: Any, ended: str) -> None:
        """Record why a finished task may run again, unless its worker was lost."""
        call = self._calls.get(key)
        if call is not None and call.again is None:
            call.begin_again(RetryReason.RETRIED if ended == "erred" else RetryReason.NEEDED)

    def _forget(self, call: LoggedTask) -> None:
        _tell(self._told["forgotten"], call)
        del self._calls[call.key]
        if call.parent is not None and (parent := self._calls.get(call.parent)) is not None:
            (parent.children or {}).pop(call.key, None)
        if call.profile is None or call.profile[3] == "failed":
            self.on_unfinished(call.task)
        if call.profile is not None or call.lost is not None:
            self._ended.pop(call.key, None)
            # Without the record, which leads to all tasks of its graph.
            self._ended[call.key] = Forgotten(call.profile, call.lost)
            if len(self._ended) > KEPT_ENDED:
                self._ended.popitem(last=False)

    def found(self, calls: Iterable[Sequence[Any]], client: str) -> None:  # noqa: ARG002
        """Handle a client's message about cache hits: name, tag or "", number, seconds saved."""
        for name, tag, count, saved_s in calls:
            outcome = CacheOutcome(OutcomeKind.FOUND, int(count), float(saved_s))
            heard = HeardOutcomes(str(name), tag or None, (outcome,))
            _tell(self._told["remembered"], heard)

    def call(self, key: Any) -> LoggedTask:
        return self._calls.get(key) or self._enter(key)

    def find(self, key: Any) -> LoggedTask | None:
        """Return the record of a task, or None if the scheduler does not know the task."""
        return self.call(key) if key in self._calls or key in self.scheduler.tasks else None

    def earlier_loss(self, key: Any) -> LostBundle | None:
        """Return how a bundle was lost that the scheduler may have forgotten, or None."""
        known = self._calls.get(key) or self._ended.get(key)
        return None if known is None else known.lost

    def __iter__(self) -> Iterator[LoggedTask]:
        return iter(self._calls.values())

    def _enter(self, key: Any) -> LoggedTask:
        task = self.scheduler.tasks[key]
        call = self._calls[key] = LoggedTask(task)
        call.state = task.state
        return call

    # For clients --------------------------------------------------------------------------------

    def profile(self, key: Any) -> dict[str, Any] | None:
        """Return the profile of a task, or None if it is unfinished or long forgotten."""
        known = self._calls.get(key) or self._ended.get(key)
        if known is None or known.profile is None:
            return None
        return dict(zip(PROFILE, known.profile, strict=True))

    def failures(self, keys: Iterable[Any]) -> list[dict[str, Any]]:
        """Return known facts about each task: name, tag, arguments, worker, attempts and cause."""
        found: list[dict[str, Any]] = []
        for key in keys:
            task = self.scheduler.tasks.get(key)
            facts = {} if task is None else self._facts(key)
            blamed = None if task is None else task.exception_blame
            if blamed is not None and blamed is not task:
                facts["cause"] = {"key": blamed.key, **self._facts(blamed.key)}
            found.append(facts)
        return found

    def _facts(self, key: Any) -> dict[str, Any]:
        call = self.call(key)
        # A task that failed only because of another one never ran.
        return {"task_name": call.name, "tag": call.tag, **(call.failure or {"tries": 0})}

    # Scheduler and workers ----------------------------------------------------------------------

    def restart(self, scheduler: Scheduler) -> None:  # noqa: ARG002
        """Forget all tasks, which a restart of the scheduler has dropped."""
        for call in self._calls.values():
            _tell(self._told["forgotten"], call)
        self._calls.clear()
        self._ended.clear()

    def add_worker(self, scheduler: Scheduler, worker: str) -> None:
        state = scheduler.workers[worker]
        self.workers.connected(state)
        _tell(self._told["worker_added"], state)

    def remove_worker(self, scheduler: Scheduler, worker: str, **_: Any) -> None:  # noqa: ARG002
        _tell(self._told["worker_removed"], worker)
        self.workers.left(worker)

    def log_event(self, topic: Any, msg: Any) -> None:
        """Send ``worker_lost`` for Dask's event about it."""
        self.workers.log_event(topic, msg)
        if (lost := LostWorker.of(topic, msg)) is not None:
            self.workers.lost(lost)
            _tell(self._told["worker_lost"], lost)

    async def close(self) -> None:
        _tell(self._told["closed"], self.scheduler)
        self._calls.clear()


def _tell(listeners: Iterable[Callable[[Any], None]], event: Any) -> None:
    for tell in listeners:
        try:
            tell(event)
        except Exception:  # like Dask for its plug-ins: continue with the other listeners
            logger.info("a listener of the task log failed: %r", tell, exc_info=True)


# Cache outcomes -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class HeardOutcomes:
    """Cache outcomes of tasks of one name and tag."""

    name: str
    tag: str | None
    outcomes: Sequence[CacheOutcome]
    #: Key of the Dask task that ran the tasks, or None if their client found the results.
    task_id: str | None = None

    def rows(self, timestamp: float) -> list[Mapping[str, Any]]:
        place = {"task_name": self.name, "tag": self.tag, "task_id": self.task_id}
        return [
            {**place, "timestamp": timestamp, **outcome.to_message()} for outcome in self.outcomes
        ]


# Failed tasks -------------------------------------------------------------------------------------

#: Error classes of tasks that failed because their worker was lost.
_OF_LOST_WORKERS = frozenset({KilledWorker.__name__, OUT_OF_MEMORY})


def failure_in(details: Mapping[str, Any]) -> tuple[str, str]:
    """Return class name and message of a transition's exception, without unpickling it."""
    text, exception = details.get("exception_text"), details.get("exception")
    if text is not None:
        name, _, rest = text.partition("(")
        return name, _unquoted(rest.removesuffix(")")) or name
    if isinstance(exception, bytes):
        error = pickle.loads(exception)  # noqa: S301 - made by this very scheduler
        return type(error).__name__, str(error)
    return "Exception", "no message"


def _unquoted(shown: str) -> str:
    """Return the string if ``shown`` is the ``repr`` of one, else ``shown``."""
    try:
        value = ast.literal_eval(shown)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return shown
    return value if isinstance(value, str) else shown


# Running tasks ------------------------------------------------------------------------------------


#: Number of assigned tasks, beyond a worker's threads, among which its running tasks are looked up.
#: With a thousand workers, all assigned tasks would take the event loop too long.
LOOKED_SENT = 5


def running_tasks(worker: WorkerState) -> list[tuple[TaskState, float]]:
    """Return the tasks that run on a worker, each with its running time in seconds.
    These are the tasks in its last heartbeat, and the next ones that its free threads and resources
    can have started since.
    """
    if not worker.processing:
        return []
    since = max(0.0, time.time() - worker.last_seen)
    named = [task for task in worker.executing if task.processing_on is worker]
    running = [(task, worker.executing[task] + since) for task in named]
    threads = worker.nthreads - len(named)
    if threads <= 0 or len(worker.processing) <= len(named):
        return running
    free = dict(worker.resources)
    for task in named:
        _take(task, free)
    sent = islice(worker.processing, len(named) + threads + LOOKED_SENT)
    others = [task for task in sent if task not in named]
    if len(others) > threads:
        others = heapq.nsmallest(threads, others, key=attrgetter("priority"))
    return running + [(task, since / 2) for task in others if _take(task, free)]


def _take(task: TaskState, free: dict[str, float]) -> bool:
    """Subtract a task's resources from the free ones. Return False if they do not suffice."""
    asked = task.resource_restrictions or {}
    enough = all(free.get(name, 0) >= amount for name, amount in asked.items())
    for name, amount in asked.items():
        free[name] = free.get(name, 0) - amount
    return enough
