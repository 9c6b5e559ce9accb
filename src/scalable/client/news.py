"""News that a scheduler in another process sends: why calls wait, and that its cluster ends."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from distributed import Client, Scheduler

from scalable.errors import ClusterError
from scalable.protocol.operations import ENDING_TOPIC, WAITING_TOPIC

logger = logging.getLogger("scalable.client")


class News:
    """Shows a client's user the news of a scheduler in another process.

    A scheduler in this process logs the same itself.

    Parameters
    ----------
    client
        The Dask client.
    in_call
        Function that returns whether only calls use the client. The client whose call is running
        gets the news then.
    end
        Function that is called once, with the error of all calls, when the cluster begins to end.
    """

    def __init__(
        self, client: Client, in_call: Callable[[], bool], end: Callable[[ClusterError], None]
    ) -> None:
        self._client, self._in_call, self._end = client, in_call, end
        self._ends = False

    def subscribe(self) -> None:
        """Ask the scheduler for its news; a new connection has to ask again."""
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
