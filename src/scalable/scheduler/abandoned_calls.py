"""Scheduler plug-in that interrupts the running tasks of disconnected clients."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

from distributed import Scheduler, SchedulerPlugin

from scalable.dask_compat.connected_workers import told_at_start
from scalable.dask_compat.connections import client_that_leaves, tasks_only_for
from scalable.dask_compat.scheduler import send_to_worker
from scalable.protocol.bundles import ALL
from scalable.protocol.operations import INTERRUPT, MANAGER_KEY

logger = logging.getLogger("scalable.scheduler")

#: Seconds between a client's disconnection and the interruption of its running tasks.
GRACE_S = 10.0


class AbandonedCalls(SchedulerPlugin):
    """Interrupts running tasks after the only client that needs them has disconnected.
    Dask lets such tasks finish, and they would keep their slots until then.
    """

    name = "scalable-abandoned-calls"

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def log_event(self, topic: Any, msg: Any) -> None:
        """Note the assigned tasks of a client that disconnects, and interrupt them later."""
        client = client_that_leaves(topic, msg)
        if client is not None and (assigned := list(tasks_only_for(self._scheduler, client))):
            self._scheduler.loop.call_later(GRACE_S, partial(self._end, client, assigned))

    def _end(self, client: str, assigned: list[tuple[Any, str]]) -> None:
        for key, address in assigned:
            worker = self._scheduler.workers.get(address)
            # If the scheduler still holds the task, another client needs it, perhaps in a graph.
            if key in self._scheduler.tasks or worker is None:
                continue
            if told_at_start(worker, MANAGER_KEY) is not None:
                logger.debug("call %s is ended: its client %s has left", key, client)
                message = {"op": INTERRUPT, "key": key, "number": ALL, "client": client}
                send_to_worker(self._scheduler, address, message)
