"""RPC handlers that our workers add to Dask's: names and typed calls."""

from __future__ import annotations

from enum import StrEnum
from typing import Any


class WorkerHandler(StrEnum):
    """Name of an RPC handler, as it is registered on a worker."""

    SHOWN_CALL = "scalable_shown_call"


class WorkerCalls:
    """Typed calls of one worker's handlers. ``comm`` is Dask's ``rpc`` object of the worker."""

    def __init__(self, comm: Any) -> None:
        self._comm = comm

    async def shown_call(self, key: Any = None) -> dict[str, Any]:
        """See :func:`scalable.worker.shown_calls.shown_call`, empty if it is not our worker."""
        answer = await getattr(self._comm, WorkerHandler.SHOWN_CALL.value)(key=key)
        return answer if isinstance(answer, dict) else {}
