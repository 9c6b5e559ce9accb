"""Seams of Dask's scheduler."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from distributed import Scheduler
from distributed.batched import BatchedSend
from distributed.comm.core import CommClosedError
from distributed.protocol.pickle import dumps
from distributed.protocol.serialize import Serialize, Serialized, deserialize
from distributed.scheduler import TaskState, WorkerState, heartbeat_interval

from scalable.dask_compat.facts import (
    Seams,
    accepts,
    contains,
    declares,
    has,
    is_a,
    mentions,
)

logger = logging.getLogger("scalable.scheduler")

seams = Seams("scheduler")

_SCHEDULER = "distributed.scheduler:Scheduler"
_TASK = "distributed.scheduler:TaskState"
_WORKER = "distributed.scheduler:WorkerState"

# Messages -------------------------------------------------------------------------------------


@seams.relies_on(
    mentions(_SCHEDULER, "client_comms"),
    accepts("distributed.batched:BatchedSend.send", 2),
)
def send_to_client(scheduler: Scheduler, client: str, message: dict[str, Any]) -> None:
    """Send a message to a client, or do nothing if the client has disconnected."""
    comm = scheduler.client_comms.get(client)
    if comm is not None:
        _send(comm, message)


@seams.relies_on(
    mentions(_SCHEDULER, "stream_comms"),
    accepts("distributed.batched:BatchedSend.send", 2),
)
def send_to_worker(scheduler: Scheduler, address: str, message: dict[str, Any]) -> None:
    """Send a message to a worker, or do nothing if the worker has disconnected."""
    comm = scheduler.stream_comms.get(address)
    if comm is not None:
        _send(comm, message)


def _send(comm: BatchedSend, message: dict[str, Any]) -> None:
    """Send a message, unless the connection has just closed.

    The error would reach the handler of another sender's message: the scheduler would close the
    connection of a worker that passes a message on to a client which has left.
    """
    try:
        comm.send(message)
    except CommClosedError:
        logger.debug("%s is not sent: the connection has ended", message.get("op"))


@seams.relies_on(
    mentions("distributed.core:Server", "stream_handlers", "handlers"),
    mentions("distributed.core:Server.handle_stream", "stream_handlers"),
)
def offer_on_streams(scheduler: Scheduler, operation: str, handler: Any) -> None:
    """Register a handler for an operation, also called with ``client=`` or ``worker=``."""
    scheduler.stream_handlers[operation] = handler


# Tasks ----------------------------------------------------------------------------------------


@seams.relies_on(
    has(_TASK, "suspicious"),
    mentions(f"{_SCHEDULER}.remove_worker", "suspicious", "allowed_failures", "KilledWorker"),
)
def fail_at_first_loss(scheduler: Scheduler, task: TaskState) -> None:
    """Make a task fail with ``KilledWorker`` when its worker is lost, instead of retrying it."""
    task.suspicious = scheduler.allowed_failures


@seams.relies_on(
    has(_TASK, "suspicious"),
    mentions(f"{_SCHEDULER}.remove_worker", "suspicious", "allowed_failures"),
)
def excuse_loss_of_task(task: TaskState) -> None:
    """Subtract one from the number of lost workers that Dask counts for a task."""
    if task.suspicious:
        task.suspicious -= 1


@seams.relies_on(
    is_a("distributed.stealing:fast_tasks", set),
    mentions("distributed.stealing:WorkStealing.steal_time_ratio", "fast_tasks", "prefix", "name"),
)
def never_steal(task: TaskState) -> None:
    """Exempt all tasks with the same prefix as this task from Dask's work stealing."""
    from distributed.stealing import fast_tasks

    fast_tasks.add(task.prefix.name)


@seams.relies_on(
    has(_TASK, "run_spec"),
    mentions("distributed.scheduler:SchedulerState._transition_memory_released", "run_spec"),
)
def never_compute_again(task: TaskState) -> None:
    """Make Dask report a task's lost result to clients, instead of running the task again."""
    task.run_spec = None


@seams.relies_on(mentions("distributed.scheduler:SchedulerState", "unrunnable", "queued"))
def count_tasks_without_worker(scheduler: Scheduler) -> int:
    """Return the number of ready tasks without a worker: none fits, or all are busy."""
    return len(scheduler.unrunnable) + len(scheduler.queued)


@seams.relies_on(mentions("distributed.scheduler:SchedulerState", "unrunnable"))
def tasks_no_worker_takes(scheduler: Scheduler) -> list[TaskState]:
    """Return the ready tasks that no connected worker can take."""
    return list(scheduler.unrunnable)


@seams.relies_on(
    contains("distributed.scheduler:SchedulerState._TRANSITIONS_TABLE", ("no-worker", "erred")),
    accepts(f"{_SCHEDULER}.transition", 3, "stimulus_id", "exception", "exception_text", "cause"),
    accepts(f"{_SCHEDULER}.transitions", 3),
    accepts(
        "distributed.scheduler:SchedulerState._transition_no_worker_erred",
        3,
        "exception",
        "exception_text",
        "cause",
    ),
)
def fail_tasks(scheduler: Scheduler, tasks: list[TaskState], error: Exception) -> None:
    """Make tasks that no worker can take fail with an error."""
    stimulus = "scalable-cannot-run"
    recommendations: dict[Any, Any] = {}
    for task in tasks:
        recommendations.update(
            scheduler.transition(
                task.key,
                "erred",
                exception=dumps(error),
                exception_text=repr(error),
                cause=task.key,
                stimulus_id=stimulus,
            )
        )
    if recommendations:
        scheduler.transitions(recommendations, stimulus)


@seams.relies_on(
    mentions(
        f"{_SCHEDULER}.remove_worker",
        "remove-worker", "processing-tasks", "lost-computed-tasks", "expected", "all",
        "stimulus_id",
    ),
    mentions("distributed.client:Client._restart", "client-restart-"),
)  # fmt: skip
class LostWorker:
    """A worker that was removed from the scheduler, from Dask's event about it.

    ``expected`` is set if it left as planned. ``dismissed`` is set if the scheduler stopped it, as
    planned or because a client restarts all workers. ``running`` has the keys of its assigned
    tasks, and ``computed`` those of the tasks whose only result was on it.
    """

    def __init__(self, message: dict[str, Any]) -> None:
        self.address: str = message["worker"]
        self.expected = bool(message["expected"])
        stimulus = str(message.get("stimulus_id", ""))
        self.dismissed = self.expected or stimulus.startswith("client-restart-")
        self.running: tuple[Any, ...] = tuple(message["processing-tasks"])
        self.computed: tuple[Any, ...] = tuple(message["lost-computed-tasks"])

    @classmethod
    def of(cls, topic: Any, message: Any) -> LostWorker | None:
        """Return the worker that an event reports as removed, or None for other events."""
        if topic != "all" or not isinstance(message, dict):
            return None
        return cls(message) if message.get("action") == "remove-worker" else None


@seams.relies_on(
    mentions(f"{_SCHEDULER}.restart_workers", "action", "restart-workers", "workers", "all"),
)
def restarted_by_nannies(topic: Any, message: Any) -> list[str]:
    """Return the addresses of workers that an event reports as restarted by a client."""
    if topic != "all" or not isinstance(message, dict):
        return []
    return list(message["workers"]) if message.get("action") == "restart-workers" else []


# Workers --------------------------------------------------------------------------------------


@seams.relies_on(
    mentions("distributed.stealing:WorkStealing", "in_flight"),
    accepts("distributed.stealing:WorkStealing.move_task_request", 4),
    has(_WORKER, "processing", "long_running"),
)
class Stealing:
    """Moves tasks that have not started to another worker. Needs Dask's extension ``stealing``."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._extension: Any = scheduler.extensions.get("stealing")

    def movable(self, worker: WorkerState) -> list[TaskState]:
        """Return a worker's tasks that :meth:`move` may be called for."""
        if self._extension is None:
            return []
        flying = self._extension.in_flight
        return [t for t in worker.processing if t not in flying and t not in worker.long_running]

    def asks(self, worker: WorkerState) -> bool:
        """Return whether a worker has not yet answered a request to give up a task."""
        if self._extension is None:
            return False
        return any(task in self._extension.in_flight for task in worker.processing)

    def move(self, task: TaskState, victim: WorkerState, thief: WorkerState) -> None:
        """Request that one worker (the victim) gives up a task to another (the thief)."""
        self._extension.move_task_request(task, victim, thief)


@seams.relies_on(
    accepts("distributed.worker:Worker.run", 2, "function", "args"),
    mentions("distributed.worker:run", "status", "result", "OK", "dask_worker"),
    has("distributed.worker_state_machine:TaskState", "state"),
    mentions("distributed.worker_state_machine:WorkerState", "tasks"),
)
async def ask_task_states(
    scheduler: Scheduler, worker: WorkerState, keys: list[Any]
) -> tuple[str, dict[Any, str]] | None:
    """Return a worker's status and its task states by known key, or None after its error.

    Raises OSError if the worker does not answer.
    """
    answer = await scheduler.rpc(worker.address).run(function=_asking(), args=dumps((keys,)))
    if answer["status"] != "OK":
        return None
    status, states = plain_value(answer["result"])
    return status, states


def _asking() -> bytes:
    # A nested function is pickled by value, so the worker does not need to import this package.
    def states(keys: list[Any], dask_worker: Any) -> tuple[str, dict[Any, str]]:
        tasks = dask_worker.state.tasks
        return dask_worker.status.name, {k: tasks[k].state for k in keys if k in tasks}

    return bytes(dumps(states))


def plain_value(value: Any) -> Any:
    """Return the deserialized object: a scheduler keeps values from workers serialized."""
    if isinstance(value, Serialized):
        return deserialize(value.header, value.frames)
    return value.data if isinstance(value, Serialize) else value


@seams.relies_on(
    declares("distributed.scheduler:SchedulerState.decide_worker_non_rootish", "self", "ts"),
    declares("distributed.scheduler:SchedulerState.valid_workers", "self", "ts"),
    declares("distributed.scheduler:SchedulerState.worker_objective", "self", "ts", "ws"),
    mentions("distributed.scheduler:SchedulerState", "running", "resources", "workers", "idle"),
    has(_TASK, "resource_restrictions", "worker_restrictions", "host_restrictions", "actor"),
    accepts(f"{_SCHEDULER}.add_resources", 3),
    accepts(f"{_SCHEDULER}.remove_resources", 2),
    optional=True,
)
def tag_placement() -> str | None:
    """Return why ``TagPlacement``, which speeds up placement, cannot run here, or None."""
    return seams.difference(tag_placement.__name__)


#: Milliseconds between Dask's checks of the scheduler's process, whose open files it counts (at
#: least one for each connection), and between its checks of all workers for an idle scheduler. Dask
#: has 500 and 250 ms.
_PAUSES_MS = {"monitor": 2000, "idle-timeout": 1000}


@seams.relies_on(
    mentions("distributed.core:Server.__init__", "periodic_callbacks", "monitor"),
    mentions(f"{_SCHEDULER}.__init__", "periodic_callbacks", "idle-timeout"),
    optional=True,
)
def look_seldom(scheduler: Scheduler) -> None:
    """Reduce the frequency of Dask's checks that are slow with thousands of workers."""
    for name, pause_ms in _PAUSES_MS.items():
        if (callback := scheduler.periodic_callbacks.get(name)) is not None:
            callback.callback_time = max(callback.callback_time, pause_ms)


@seams.relies_on(declares("distributed.scheduler:heartbeat_interval", "n"))
def heartbeat_pause_s(workers: int) -> float:
    """Return the seconds between a worker's heartbeats with so many workers (5,000: 26 s)."""
    return heartbeat_interval(workers)


@seams.relies_on(
    mentions("distributed.worker_state_machine:TaskFinishedMsg.__init__", "startstops"),
    contains(
        "distributed.worker_state_machine:StartStop.__annotations__", "action", "start", "stop"
    ),
    declares(
        "distributed.diagnostics.plugin:SchedulerPlugin.transition",
        "self",
        "key",
        "start",
        "finish",
        "stimulus_id",
        "args",
        "kwargs",
    ),
)
def startstops(details: Mapping[str, Any]) -> Any:
    """Return a finished task's timings (``action``, ``start`` and ``stop``), or None."""
    return details.get("startstops")


@seams.relies_on(
    declares(
        "distributed.node:ServerNode.start_http_server",
        "self", "routes", "dashboard_address", "default_port", "ssl_options",
    ),
    mentions("distributed.node:ServerNode.start_http_server", "http_application", "http_server"),
    declares(
        "distributed.http.routing:RoutingApplication.find_handler", "self", "request", "kwargs"
    ),
)  # fmt: skip
def http_application(scheduler: Any) -> Any:
    """Return the Tornado application of a scheduler's or worker's HTTP server."""
    return scheduler.http_application


@seams.relies_on(
    mentions("distributed.node:ServerNode._setup_logging", "_deque_handler", "addHandler"),
    mentions("distributed.node:ServerNode.get_logs", "_deque_handler"),
)
def keep_logs(scheduler: Any, logger: logging.Logger) -> None:
    """Add a logger's messages to the scheduler's logs that clients can read."""
    logger.addHandler(scheduler._deque_handler)  # noqa: SLF001
