"""Seams of Dask's scheduler."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import wraps
from typing import Any

from distributed import Scheduler, versions
from distributed.batched import BatchedSend
from distributed.comm.core import Comm, CommClosedError
from distributed.core import Status
from distributed.protocol.pickle import dumps
from distributed.protocol.serialize import Serialized, ToPickle, deserialize
from distributed.scheduler import TaskState, WorkerState
from distributed.stealing import fast_tasks

from scalable.dask_compat.scheduler_extensions import ForgettingBroker
from scalable.dask_compat.tasks import CarriedNode
from scalable.protocol.operations import CODE_ANNOTATION, LEFT, WIRE

logger = logging.getLogger("scalable.scheduler")


# Messages -----------------------------------------------------------------------------------------


def send_to_client(scheduler: Scheduler, client: str, message: dict[str, Any]) -> None:
    """Send a message to a client, or do nothing if the client has disconnected."""
    comm = scheduler.client_comms.get(client)
    if comm is not None:
        _send(comm, message)


def send_to_worker(scheduler: Scheduler, address: str, message: dict[str, Any]) -> None:
    """Send a message to a worker, or do nothing if the worker has disconnected."""
    comm = scheduler.stream_comms.get(address)
    if comm is not None:
        _send(comm, message)


def _send(comm: BatchedSend, message: dict[str, Any]) -> None:
    """Send a message. Only log if the connection has just closed."""
    try:
        comm.send(message)
    except CommClosedError:
        logger.debug("%s is not sent: the connection was closed", message.get("op"))


# Tasks --------------------------------------------------------------------------------------------


def keep_to_first_worker(scheduler: Scheduler, task: TaskState) -> None:
    """Make a task fail with ``KilledWorker`` if its worker is lost, and exempt it from stealing."""
    task.suspicious = scheduler.allowed_failures
    fast_tasks.add(task.prefix.name)


def excuse_loss_of_task(task: TaskState) -> None:
    """Decrement Dask's count of the workers that a task has lost, unless it is zero."""
    if task.suspicious:
        task.suspicious -= 1


def never_compute_again(task: TaskState) -> None:
    """Make Dask report a lost result to clients instead of running the task again."""
    task.run_spec = None


class LostWorker:
    """A worker removed from the scheduler, as described by Dask's event.
    ``dismissed`` is true for a planned removal (``expected``) or a client's restart of workers.
    ``running`` has its tasks' keys. ``computed`` has the keys of results that only this worker had.
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


def restarted_by_nannies(topic: Any, message: Any) -> list[str]:
    """Return the addresses of workers that an event reports as restarted by a client, or []."""
    if topic != "all" or not isinstance(message, dict):
        return []
    return list(message["workers"]) if message.get("action") == "restart-workers" else []


# Workers ------------------------------------------------------------------------------------------


class Stealing:
    """Interface to move queued tasks between workers. Needs Dask's extension ``stealing``."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._extension: Any = scheduler.extensions.get("stealing")

    def movable(self, worker: WorkerState) -> list[TaskState]:
        """Return a worker's tasks for which :meth:`move` may be called."""
        if self._extension is None:
            return []
        flying = self._extension.in_flight
        return [t for t in worker.processing if t not in flying and t not in worker.long_running]

    def asks(self, worker: WorkerState) -> bool:
        """Return whether a worker still has to answer a request to give up a task."""
        if self._extension is None:
            return False
        return any(task in self._extension.in_flight for task in worker.processing)

    def move(self, task: TaskState, victim: WorkerState, thief: WorkerState) -> None:
        """Request that a worker (the victim) gives up a task to another one (the thief)."""
        self._extension.move_task_request(task, victim, thief)


async def ask_task_states(
    scheduler: Scheduler, worker: WorkerState, keys: list[Any]
) -> tuple[str, dict[Any, tuple[str, bool]]] | None:
    """Return a worker's status, and a map of tasks to (state, whether the slot is lent).
    The tasks are those of ``keys`` that the worker knows, and all that it runs. Return None if the
    worker reports an error. Raise OSError if it does not answer.
    """
    answer = await scheduler.rpc(worker.address).run(function=_asking(), args=dumps((keys,)))
    if answer["status"] != "OK":
        return None
    answered = answer["result"]  # serialized, unless the worker is in this process
    is_sent = isinstance(answered, Serialized)
    status, states = deserialize(answered.header, answered.frames) if is_sent else answered.data
    return status, states


def _asking() -> bytes:
    # A nested function is pickled by value, so the worker does not need to import this package.
    def states(keys: list[Any], dask_worker: Any) -> tuple[str, dict[Any, tuple[str, bool]]]:
        tasks = dask_worker.state.tasks
        lender = getattr(dask_worker, "slot_lender", None)
        return dask_worker.status.name, {
            key: (tasks[key].state, lender is not None and bool(lender.lends(key)))
            for key in {*keys, *(task.key for task in dask_worker.state.all_running_tasks)}
            if key in tasks
        }

    return bytes(dumps(states))


def keep_logs(scheduler: Any, logger: logging.Logger) -> None:
    """Add a logger's messages to the scheduler's logs, which clients can read."""
    logger.addHandler(scheduler._deque_handler)  # noqa: SLF001


# Connected workers --------------------------------------------------------------------------------


def workers_by_what_they_told(scheduler: Scheduler, key: str) -> list[tuple[WorkerState, Any]]:
    """Return each connected worker with a value that it sent when it connected, or None."""
    return [(worker, worker.extra.get(key)) for worker in scheduler.workers.values()]


# Workers that connect and leave -------------------------------------------------------------------


def compare_distinct_versions() -> None:
    """Compare a new worker's versions with each distinct set only. Idempotent.
    With 5,000 workers, Dask's comparison with every worker takes 8 ms for each new one.
    """
    if not getattr(versions.error_message, "compares_distinct", False):
        versions.error_message = comparing_distinct(versions.error_message)


def comparing_distinct(compare: Callable[..., Any]) -> Callable[..., Any]:
    """Return a comparison of versions that examines each distinct set once."""

    @wraps(compare)
    def distinct(
        scheduler: Any, workers: Mapping[str, Any], source: Any, source_name: str = "Client"
    ) -> Any:
        each = {id(of_worker): of_worker for of_worker in workers.values()}
        return compare(scheduler, each, source, source_name=source_name)

    distinct.compares_distinct = True  # type: ignore[attr-defined]
    return distinct


def tasks_only_for(scheduler: Scheduler, client: str) -> Iterator[tuple[Any, str]]:
    """Yield key and worker address of each assigned task that only this client needs."""
    for ws in scheduler.workers.values():
        for task in ws.processing:
            if all(other.client_key == client for other in task.who_wants or ()):
                yield task.key, ws.address


def set_worker_status(
    scheduler: Scheduler, worker: WorkerState, status: Status, stimulus: str
) -> None:
    """Set a worker's status. The scheduler applies it first, and so assigns no task in between."""
    scheduler.handle_worker_status_change(status, worker, stimulus)
    message = {"op": "worker-status-change", "status": status.name, "stimulus_id": stimulus}
    scheduler.stream_comms[worker.address].send(message)


def ignore_worker_status(scheduler: Scheduler, ignores: Callable[[str, Status], bool]) -> None:
    """Ignore status reports for which ``ignores(worker address, status)`` is true."""
    handle = scheduler.stream_handlers["worker-status-change"]

    def filtered(status: str, worker: str, stimulus_id: str) -> None:
        if not ignores(worker, Status[status]):
            handle(status=status, worker=worker, stimulus_id=stimulus_id)

    scheduler.stream_handlers["worker-status-change"] = filtered


# The scheduler ------------------------------------------------------------------------------------

_REMOVED = "remove-worker"
#: Seconds for which departed workers are collected before the others are notified: a minimum, and a
#: time per notified worker. The larger one counts. A message takes the scheduler 0.1 to 0.2 ms, and
#: is not urgent: a worker cannot connect to a departed one in any case.
COLLECT_S, COLLECT_EACH_S = 0.1, 0.001


class ExtendedScheduler(Scheduler):
    """Dask's scheduler, without leaks, and with one message about several lost workers.
    One message each, as in Dask, takes 0.8 GB if 1,000 of 5,000 leave. A client's first message is
    sent alone: a client that gets it together with others, such as a cancellation, does not work. A
    client may reconnect before the loss of its connection is noticed: Dask would then close the new
    connection with the old one, again and again.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        #: Message to each other worker, by address of a worker that has left.
        self._left: dict[str, dict[str, Any]] = {}
        #: Connection of each client, and the event that is set when Dask has forgotten it.
        self._greeted: dict[str, tuple[Comm, asyncio.Event]] = {}
        super().__init__(*args, **kwargs)
        topics = self._broker._topics  # noqa: SLF001
        self._broker = ForgettingBroker(0, self)
        self._broker._topics = topics  # noqa: SLF001

    def _task_to_msg(self, ts: TaskState) -> dict[str, Any]:
        message = super()._task_to_msg(ts)
        code = str((ts.annotations or {}).get(CODE_ANNOTATION, ""))
        if ts.run_spec is not None:
            message["run_spec"] = ToPickle(CarriedNode(ts.run_spec, code))
        return message

    async def add_client(self, comm: Comm, client: str, versions: dict[str, Any]) -> None:
        while (earlier := self._greeted.get(client)) is not None:
            logger.debug("client %s has reconnected: its earlier connection is closed", client)
            earlier[0].abort()
            await earlier[1].wait()
        forgotten = asyncio.Event()
        self._greeted[client] = comm, forgotten
        send_first_message_alone(comm)
        try:
            await super().add_client(comm, client, versions)
        finally:
            del self._greeted[client]
            forgotten.set()

    def remove_client(self, client: str, *args: Any, **kwargs: Any) -> None:
        super().remove_client(client, *args, **kwargs)
        for topic in self._broker._topics.values():  # noqa: SLF001
            topic.subscribers.discard(client)

    async def add_worker(self, comm: Any, *, address: str, server_id: str, **kwargs: Any) -> None:
        """Register a worker. Pending messages about its address are sent first."""
        known = self.coerce_address(address, kwargs.get("resolve_address", True))
        if known in self._left:
            self._tell_left()
        try:
            await super().add_worker(comm, address=address, server_id=server_id, **kwargs)
        finally:
            ws = self.workers.get(known)
            if ws is not None and ws.server_id == server_id:  # lost: Dask would keep it forever
                stimulus = f"scalable-lost-while-registering-{time.time()}"
                await self.remove_worker(ws.address, stimulus_id=stimulus)

    async def remove_worker(self, address: str, *args: Any, **kwargs: Any) -> Any:
        worker = self.workers.get(address)
        answer = await super().remove_worker(address, *args, **kwargs)
        if worker is not None and (stealing := self.extensions.get("stealing")) is not None:
            stealing.in_flight_occupancy.pop(worker, None)
            stealing.in_flight_tasks.pop(worker, None)
        return answer

    def worker_send(self, worker: str, msg: dict[str, Any]) -> None:
        """Send a message to a worker. Removals of other workers are collected and sent later."""
        if msg.get("op") != _REMOVED:
            super().worker_send(worker, msg)
            return
        if not self._left:
            pause_s = max(COLLECT_S, COLLECT_EACH_S * len(self.stream_comms))
            asyncio.get_running_loop().call_later(pause_s, self._tell_left)
        self._left.setdefault(msg["worker"], msg)

    def _tell_left(self) -> None:
        messages = list(self._left.values())
        self._left.clear()
        if not messages:  # they were sent early
            return
        left = "\n".join(message["worker"] for message in messages).encode()
        for worker, stream in list(self.stream_comms.items()):
            with suppress(CommClosedError):  # the loss of this worker is handled elsewhere
                if worker in self.workers and self.workers[worker].extra.get(WIRE):
                    stream.send({"op": LEFT, "left": left})
                elif worker.startswith("inproc://"):  # it gets the same object, and consumes it
                    stream.send(*map(dict, messages))
                else:
                    stream.send(*messages)


def send_first_message_alone(comm: Comm) -> None:
    """Make a connection send the first message of its first batch in a separate batch."""
    write = comm.write

    async def write_first_alone(batch: Any, **options: Any) -> Any:
        comm.write = write  # type: ignore[method-assign]
        if len(batch) < 2:
            return await write(batch, **options)
        first, *others = batch
        return await write([first], **options) + await write(others, **options)

    comm.write = write_first_alone  # type: ignore[method-assign,assignment]
