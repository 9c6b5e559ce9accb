"""Ledger of a scheduler's calls: the one reader of task transitions, which tells its listeners.

It stands beside Dask's scheduler and holds one entry for each task that the scheduler knows. What
the events mean for records, profiles, policies and bundles is the listeners' part.
"""

from __future__ import annotations

import ast
import logging
import pickle
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from distributed import Scheduler, SchedulerPlugin
from distributed.scheduler import TaskState, WorkerState

from scalable.protocol.dask_seams.scheduler import LostWorker, startstops
from scalable.protocol.measured import BUNDLE_ANNOTATION, TASK_ANNOTATION, Measured, measured

logger = logging.getLogger("scalable.scheduler")

#: States of a call that a worker could run, or runs.
READY = frozenset({"processing", "queued", "no-worker"})
#: States of a call whose end was told.
ENDED = frozenset({"memory", "erred"})
#: Slots of a call without a tag: one, of any worker.
UNTAGGED_SLOTS = (("", 1),)


class Call:
    """A task of the scheduler, as its submitter described it.

    Attributes
    ----------
    key, task
        Key of the task, and Dask's state of it.
    name
        Name of the task in the manifest, or of its function.
    tag
        Tag of the pool whose slots the call takes; None without.
    slots
        Pairs of tag and number of slots; ``(("", 1),)`` for a call without a tag.
    bundle
        Annotation of the task that is a bundle of calls; None for other tasks.
    state
        State that Dask gave the call when it last became ready.
    """

    __slots__ = ("_name", "_slots", "bundle", "key", "state", "task")

    # Each task has one: what not every listener asks for is read when it is asked for first.
    def __init__(self, task: TaskState) -> None:
        annotations = task.annotations
        self.key: Any = task.key
        self.task = task
        self.bundle: Mapping[str, Any] | None = None
        self._name: str | None = None
        self._slots: tuple[tuple[str, int], ...] | None = None
        if annotations:
            self.bundle = annotations.get(BUNDLE_ANNOTATION)
            self._name = annotations.get(TASK_ANNOTATION)
        self.state = ""

    @property
    def name(self) -> str:
        """Name of the task in the manifest, or of its function."""
        return str(self._name or self.task.prefix.name)

    @property
    def tag(self) -> str | None:
        """Tag of the pool whose slots the call takes."""
        return next(iter(self.task.resource_restrictions or ()), None)

    @property
    def slots(self) -> tuple[tuple[str, int], ...]:
        """Pairs of tag and number of slots."""
        if self._slots is None:
            asked = self.task.resource_restrictions
            self._slots = (
                tuple([(str(tag), max(1, int(count))) for tag, count in asked.items()])
                if asked
                else UNTAGGED_SLOTS
            )
        return self._slots

    @property
    def input_bytes(self) -> int:
        """Bytes of the results that the call takes; 0 for a call that takes none."""
        others = self.task.dependencies
        return sum(max(0, other.nbytes) for other in others) if others else 0


class EndedCall:
    """End of a call: its result is in memory, or it failed.

    Attributes
    ----------
    call
        The call.
    succeeded
        Whether the call has a result.
    address
        Address of the worker that ran the call; None for a call that never ran.
    measured
        Times and memory that the worker measured.
    nbytes
        Size of the result in bytes; None for a failed call.
    traceback
        Text of the traceback; None without.
    """

    __slots__ = ("_details", "call", "measured", "succeeded")

    def __init__(self, call: Call, succeeded: bool, details: Mapping[str, Any]) -> None:
        self.call = call
        self.succeeded = succeeded
        self.measured: Measured = measured(startstops(details))
        self._details = details

    @property
    def address(self) -> str | None:
        """Address of the worker that ran the call."""
        return self._details.get("worker")

    @property
    def nbytes(self) -> int | None:
        """Size of the result in bytes."""
        return self._details.get("nbytes")

    @property
    def traceback(self) -> str | None:
        """Text of the traceback."""
        return self._details.get("traceback_text")

    def failure(self) -> tuple[str, str]:
        """Return the class and the message of the failure.

        Only an exception that the scheduler itself pickled is unpickled: a worker's exception may
        need modules that the scheduler does not have.
        """
        text, exception = self._details.get("exception_text"), self._details.get("exception")
        if text is not None:
            name, _, rest = text.partition("(")
            return name, _unquoted(rest.removesuffix(")")) or name
        if isinstance(exception, bytes):
            error = pickle.loads(exception)  # noqa: S301 - made by this very scheduler
            return type(error).__name__, str(error)
        return "Exception", "no message"


class Listener:
    """Receiver of a ledger's events; a subclass overrides the events that it needs."""

    def submitted(self, calls: list[Call]) -> None:
        """Handle the tasks of a graph that a client sent; some may be known already."""

    def waiting(self, call: Call) -> None:
        """Handle a call that is to run, and waits for others or for its placement."""

    def ready(self, call: Call) -> None:
        """Handle a call that waits for nothing but a worker, or was given to one."""

    def dequeued(self, call: Call) -> None:
        """Handle a call that left the scheduler's queue for a worker."""

    def ended(self, end: EndedCall) -> None:
        """Handle a call that succeeded or failed."""

    def left(self, call: Call) -> None:
        """Handle a call that no longer waits or runs, without an end of its own."""

    def forgotten(self, call: Call) -> None:
        """Handle a call that nobody wants any more."""

    def restarted(self, scheduler: Scheduler) -> None:
        """Handle the start or a restart of the scheduler, which drops all tasks and metadata."""

    def worker_added(self, worker: WorkerState) -> None:
        """Handle a worker that connected."""

    def worker_lost(self, lost: LostWorker) -> None:
        """Handle the loss of a worker, before its calls are given to others."""

    def worker_removed(self, address: str) -> None:
        """Handle the removal of a worker, after its calls were given to others."""

    def closed(self, scheduler: Scheduler) -> None:
        """Handle the end of the scheduler."""


#: Events of a listener, in the order of its methods.
EVENTS = tuple(name for name in vars(Listener) if not name.startswith("_"))


class Ledger(SchedulerPlugin):
    """Reads each transition of a task once, and tells the listeners what became of the call.

    A listener that raises does not keep an event from the others.

    Parameters
    ----------
    scheduler
        Scheduler whose calls these are.
    """

    name = "scalable-ledger"

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self._calls: dict[Any, Call] = {}
        self._listeners: list[Listener] = []
        self._told: dict[str, list[Callable[[Any], None]]] = {}
        self._subscribe()

    @classmethod
    def of(cls, scheduler: Scheduler) -> Ledger:
        """Return the ledger of a scheduler; add one where the scheduler has none."""
        known = scheduler.plugins.get(cls.name)
        if isinstance(known, cls):
            return known
        ledger = cls(scheduler)
        scheduler.add_plugin(ledger)
        return ledger

    def listen(self, listener: Listener) -> None:
        """Tell a listener of all events from now on; a listener that is known stays as it is."""
        if listener not in self._listeners:
            self._listeners.append(listener)
            self._subscribe()

    def _subscribe(self) -> None:
        """Find the methods for each event: events that nobody overrides cost nothing."""
        for event in EVENTS:
            unused = getattr(Listener, event)
            self._told[event] = [
                getattr(listener, event)
                for listener in self._listeners
                if getattr(type(listener), event) is not unused
            ]
        self._waiting, self._ready = self._told["waiting"], self._told["ready"]
        self._ended, self._forgotten = self._told["ended"], self._told["forgotten"]

    # Tasks --------------------------------------------------------------------------------------

    def update_graph(self, scheduler: Scheduler, *, tasks: Iterable[Any], **_: Any) -> None:
        """Enter the tasks of a graph, anew where they were known: their annotations may differ."""
        submitted = []
        for key in tasks:
            task = scheduler.tasks.get(key)
            if task is not None:
                call = self._calls[key] = Call(task)
                submitted.append(call)
        _tell(self._told["submitted"], submitted)

    def transition(self, key: Any, start: str, finish: str, *_: Any, **details: Any) -> None:
        """Tell the listeners what a transition of a task means."""
        if finish == "released" and start in ENDED:
            return
        if finish == "forgotten":
            call = self._calls.pop(key, None) or Call(self.scheduler.tasks[key])
            _tell(self._forgotten, call)
            return
        call = self._calls.get(key) or self._enter(key)
        if finish in READY:
            if start not in READY:
                call.state = finish
                _tell(self._ready, call)
            elif start == "queued":
                call.state = finish
                _tell(self._told["dequeued"], call)
        elif finish == "erred":
            _tell(self._ended, EndedCall(call, False, details))
        elif finish == "memory" and start == "processing":
            _tell(self._ended, EndedCall(call, True, details))
        elif finish == "waiting":
            if self._waiting:
                _tell(self._waiting, call)
        else:
            _tell(self._told["left"], call)

    def _enter(self, key: Any) -> Call:
        call = self._calls[key] = Call(self.scheduler.tasks[key])
        return call

    # Scheduler and workers ----------------------------------------------------------------------

    async def start(self, scheduler: Scheduler) -> None:
        """Tell the listeners that the scheduler starts: it drops what it was told before."""
        self.restart(scheduler)

    def restart(self, scheduler: Scheduler) -> None:
        """Drop all calls, as the scheduler did."""
        self._calls.clear()
        _tell(self._told["restarted"], scheduler)

    def add_worker(self, scheduler: Scheduler, worker: str) -> None:
        """Pass on that a worker connected."""
        _tell(self._told["worker_added"], scheduler.workers[worker])

    def remove_worker(self, scheduler: Scheduler, worker: str, **_: Any) -> None:  # noqa: ARG002
        """Pass on that a worker left."""
        _tell(self._told["worker_removed"], worker)

    def log_event(self, topic: Any, msg: Any) -> None:
        """Pass on that a worker was lost."""
        lost = LostWorker.of(topic, msg)
        if lost is not None:
            _tell(self._told["worker_lost"], lost)

    async def close(self) -> None:
        """Pass on that the scheduler closes."""
        _tell(self._told["closed"], self.scheduler)


def _tell(listeners: Iterable[Callable[[Any], None]], event: Any) -> None:
    for tell in listeners:
        try:
            tell(event)
        except Exception:  # as Dask treats its plug-ins: the others are told all the same
            logger.info("a listener of the ledger failed: %r", tell, exc_info=True)


def _unquoted(shown: str) -> str:
    """Return the text itself where a representation is one quoted text."""
    try:
        value = ast.literal_eval(shown)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return shown
    return value if isinstance(value, str) else shown
