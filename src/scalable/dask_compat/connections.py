"""Seams of connecting and leaving workers and clients."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import wraps
from typing import Any

from distributed import Scheduler, versions
from distributed.comm.core import CommClosedError
from distributed.core import Status
from distributed.scheduler import WorkerState

from scalable.dask_compat.connected_workers import told_at_start
from scalable.dask_compat.facts import Seams, accepts, declares, has, mentions
from scalable.protocol.operations import LEFT

seams = Seams("scheduler of connections")

_SCHEDULER = "distributed.scheduler:Scheduler"
_REMOVED = "remove-worker"
#: Seconds for which workers that left are collected before the others are notified: in total at
#: least, and for each notified worker. A message takes the scheduler 0.1 to 0.2 ms, and is not
#: urgent: a worker that requests a result from one that left gets no connection.
COLLECT_S, COLLECT_EACH_S = 0.1, 0.001


@seams.relies_on(
    mentions(f"{_SCHEDULER}.__init__", "add_worker", "register-worker"),
    mentions(f"{_SCHEDULER}.add_worker", "workers", "handle_worker", "server_id", "write"),
    mentions(f"{_SCHEDULER}.add_worker", "coerce_address", "resolve_address"),
    has("distributed.scheduler:WorkerState", "server_id"),
    accepts(f"{_SCHEDULER}.remove_worker", 1, "address", "stimulus_id"),
)
class RegisteringScheduler(Scheduler):
    """A scheduler that removes a worker which was lost while it registered.

    Dask removes a worker when its stream ends. If the connection breaks before the stream starts,
    Dask would keep the worker for ever, and assign tasks to it.
    """

    async def add_worker(self, comm: Any, *, address: str, server_id: str, **kwargs: Any) -> None:
        try:
            await super().add_worker(comm, address=address, server_id=server_id, **kwargs)
        finally:
            known = self.coerce_address(address, kwargs.get("resolve_address", True))
            ws = self.workers.get(known)
            if ws is not None and ws.server_id == server_id:
                stimulus = f"scalable-lost-while-registering-{time.time()}"
                await self.remove_worker(ws.address, stimulus_id=stimulus)


@seams.relies_on(
    declares(f"{_SCHEDULER}.worker_send", "self", "worker", "msg"),
    mentions(f"{_SCHEDULER}.remove_worker", "worker_send", "remove-worker", "op", "worker"),
    mentions("distributed.batched:BatchedSend.send", "buffer", "extend"),
    mentions("distributed.worker:Worker.__init__", "remove-worker"),
)
class TellingScheduler(Scheduler):
    """A scheduler that notifies the workers of several lost workers in one message.

    For each lost worker, Dask makes a message to each other worker. When 1,000 of 5,000 left, these
    were four million messages: 0.8 GB, and garbage collections of 2 to 4 s. Our workers get the
    addresses as one string that is made once: encoding a list for each worker took 5 s.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        #: Message to each other worker, by address of a worker that has left.
        self._left: dict[str, dict[str, Any]] = {}
        super().__init__(*args, **kwargs)

    def worker_send(self, worker: str, msg: dict[str, Any]) -> None:
        """Send a message to a worker. The removal of a worker is sent a moment later."""
        if msg.get("op") != _REMOVED:
            super().worker_send(worker, msg)
            return
        if not self._left:
            pause_s = max(COLLECT_S, COLLECT_EACH_S * len(self.stream_comms))
            asyncio.get_running_loop().call_later(pause_s, self._tell_left)
        self._left.setdefault(msg["worker"], msg)

    async def add_worker(self, comm: Any, *, address: str, server_id: str, **kwargs: Any) -> None:
        """Register a worker. Pending messages about its address are sent first."""
        if self.coerce_address(address, kwargs.get("resolve_address", True)) in self._left:
            self._tell_left()
        await super().add_worker(comm, address=address, server_id=server_id, **kwargs)

    def _tell_left(self) -> None:
        messages = list(self._left.values())
        self._left.clear()
        if not messages:  # they were sent early
            return
        left = "\n".join(message["worker"] for message in messages).encode()
        for worker, stream in list(self.stream_comms.items()):
            with suppress(CommClosedError):  # the loss of this worker is handled elsewhere
                if worker in self.workers and told_at_start(self.workers[worker], LEFT):
                    stream.send({"op": LEFT, "left": left})
                elif worker.startswith("inproc://"):  # it gets the same object, and consumes it
                    stream.send(*map(dict, messages))
                else:
                    stream.send(*messages)


@seams.relies_on(
    mentions(f"{_SCHEDULER}.add_worker", "version_module", "error_message", "versions"),
    accepts("distributed.versions:error_message", 3, "source_name"),
    has("distributed.scheduler:WorkerState", "versions"),
)
def compare_distinct_versions() -> None:
    """Compare a new worker's versions with each distinct set only. Idempotent.

    Dask compares them with those of every worker, which takes 8 ms of each arrival at 5,000
    workers. The answer is the same. Workers with equal versions share their set: see
    :meth:`scalable.scheduler.controller.Versions.shared`.
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


@seams.relies_on(
    mentions(f"{_SCHEDULER}.remove_client", "action", "remove-client", "client", "log_event"),
    declares("distributed.diagnostics.plugin:SchedulerPlugin.log_event", "self", "topic", "msg"),
)
def client_that_leaves(topic: Any, message: Any) -> str | None:
    """Return the client that an event reports as gone, before its tasks are released, or None."""
    if topic != "all" or not isinstance(message, dict):
        return None
    return message.get("client") if message.get("action") == "remove-client" else None


@seams.relies_on(
    has("distributed.scheduler:WorkerState", "processing"),
    has("distributed.scheduler:TaskState", "who_wants"),
)
def tasks_only_for(scheduler: Scheduler, client: str) -> Iterator[tuple[Any, str]]:
    """Yield key and worker address of assigned tasks that only this client needs."""
    for ws in scheduler.workers.values():
        for task in ws.processing:
            if all(other.client_key == client for other in task.who_wants or ()):
                yield task.key, ws.address


@seams.relies_on(
    accepts(f"{_SCHEDULER}.handle_worker_status_change", 4),
    mentions("distributed.worker:Worker.__init__", "worker-status-change"),
    accepts("distributed.worker:Worker.handle_worker_status_change", 2, "stimulus_id"),
    has("distributed.core:Status", "running", "closing_gracefully"),
    mentions(_SCHEDULER, "stream_comms"),
)
def set_worker_status(
    scheduler: Scheduler, worker: WorkerState, status: Status, stimulus: str
) -> None:
    """Set a worker's status, on the scheduler first so that it assigns no task in between."""
    scheduler.handle_worker_status_change(status, worker, stimulus)
    message = {"op": "worker-status-change", "status": status.name, "stimulus_id": stimulus}
    scheduler.stream_comms[worker.address].send(message)


@seams.relies_on(
    mentions(f"{_SCHEDULER}.__init__", "worker-status-change", "handle_worker_status_change"),
    accepts(f"{_SCHEDULER}.handle_worker_status_change", 1, "status", "worker", "stimulus_id"),
    mentions("distributed.core:Server", "stream_handlers", "handlers"),
    mentions("distributed.core:Server.handle_stream", "stream_handlers"),
)
def ignore_worker_status(scheduler: Scheduler, ignores: Callable[[str, Status], bool]) -> None:
    """Ignore the status reports for which ``ignores(worker address, status)`` is True."""
    handle = scheduler.stream_handlers["worker-status-change"]

    def filtered(status: str, worker: str, stimulus_id: str) -> None:
        if not ignores(worker, Status[status]):
            handle(status=status, worker=worker, stimulus_id=stimulus_id)

    scheduler.stream_handlers["worker-status-change"] = filtered
