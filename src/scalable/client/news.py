"""News of a scheduler in another process: why tasks wait, and that its cluster stops."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from distributed import Client, Scheduler

from scalable.errors import ClusterError
from scalable.protocol.operations import ENDING_TOPIC, WAITING_TOPIC

logger = logging.getLogger("scalable.client")


class News:
    """Receiver of a scheduler's news for the user of a client in another process.

    A scheduler in this process logs the same itself. While only tasks use the client (``in_call``),
    the client whose task is running gets the news instead. ``end`` is called once, with the error
    of all tasks, when the cluster starts to stop.
    """

    def __init__(
        self, client: Client, in_call: Callable[[], bool], end: Callable[[ClusterError], None]
    ) -> None:
        self._client, self._in_call, self._end = client, in_call, end
        self._ends = False

    def subscribe(self) -> None:
        """Subscribe to the scheduler's news. A new connection has to subscribe again."""
        if not isinstance(getattr(self._client.cluster, "scheduler", None), Scheduler):
            self._client.subscribe_topic(WAITING_TOPIC, self._waiting)
            self._client.subscribe_topic(ENDING_TOPIC, self._ending)

    def _waiting(self, event: tuple[float, Any]) -> None:
        clients, words = event[1]["clients"], event[1]["words"]
        if not self._in_call() and (not clients or self._client.id in clients):
            logger.warning("%s", words)

    def _ending(self, event: tuple[float, Any]) -> None:
        if self._in_call() or self._ends:
            return
        self._ends = True
        name, reason = event[1]["name"], event[1]["reason"]
        error = ClusterError(
            f"{f'cluster {name!r}' if name else 'the cluster'} has ended: {reason}",
            hint="start a cluster, and make the calls again",
        )
        logger.warning("%s", error.message)
        self._end(error)
