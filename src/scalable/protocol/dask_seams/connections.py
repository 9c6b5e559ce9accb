"""Seams (dependences on Dask internals) of workers and clients that connect and disconnect."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from distributed import Scheduler

from scalable.protocol.dask_seams.facts import Seams, accepts, declares, has, mentions

seams = Seams("scheduler of connections")

_SCHEDULER = "distributed.scheduler:Scheduler"


@seams.relies_on(
    mentions(f"{_SCHEDULER}.__init__", "add_worker", "register-worker"),
    mentions(f"{_SCHEDULER}.add_worker", "workers", "handle_worker", "server_id", "write"),
    has("distributed.scheduler:WorkerState", "server_id"),
    accepts(f"{_SCHEDULER}.remove_worker", 1, "address", "stimulus_id"),
)
class RegisteringScheduler(Scheduler):
    """A scheduler that removes a worker which was lost while it registered.

    Dask removes a worker when the worker's stream ends. If the connection breaks before the stream
    begins, Dask would keep the worker for ever, and assign tasks to it.

    Relies on ``Scheduler.add_worker``, which registers the worker and returns, or raises, after the
    end of the stream; its parameter must be named ``comm``.
    """

    async def add_worker(self, comm: Any, *, address: str, server_id: str, **kwargs: Any) -> None:
        """Register a worker, and serve its stream until it ends."""
        try:
            await super().add_worker(comm, address=address, server_id=server_id, **kwargs)
        finally:
            for ws in list(self.workers.values()):
                if ws.server_id == server_id:
                    stimulus = f"scalable-lost-while-registering-{time.time()}"
                    await self.remove_worker(ws.address, stimulus_id=stimulus)


@seams.relies_on(
    mentions(f"{_SCHEDULER}.remove_client", "action", "remove-client", "client", "log_event"),
    declares("distributed.diagnostics.plugin:SchedulerPlugin.log_event", "self", "topic", "msg"),
)
def client_that_leaves(topic: Any, message: Any) -> str | None:
    """Return the id of the client that an event reports as gone; None for other events.

    Relies on the message that ``Scheduler.remove_client`` logs under the topic ``all`` before it
    releases the tasks of the client.
    """
    if topic != "all" or not isinstance(message, dict):
        return None
    return message.get("client") if message.get("action") == "remove-client" else None


@seams.relies_on(
    has("distributed.scheduler:WorkerState", "processing"),
    has("distributed.scheduler:TaskState", "who_wants"),
)
def tasks_only_for(scheduler: Scheduler, client: str) -> Iterator[tuple[Any, str]]:
    """Yield key and worker address of the assigned tasks that no other client wants itself.

    Relies on ``WorkerState.processing`` and ``TaskState.who_wants``.
    """
    for ws in scheduler.workers.values():
        for task in ws.processing:
            if all(other.client_key == client for other in task.who_wants or ()):
                yield task.key, ws.address
