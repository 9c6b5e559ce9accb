"""RPC handlers that our workers add to Dask's: their names, and calls with types for answers."""

from __future__ import annotations

from enum import StrEnum
from typing import Any


class WorkerHandler(StrEnum):
    """Name of an RPC handler, as it is registered on a worker."""

    SHOWN_CALL = "scalable_shown_call"


class WorkerCalls:
    """Calls the handlers of one of our workers, with types for arguments and answers.

    Parameters
    ----------
    comm
        Dask's ``rpc`` object of the worker.
    """

    def __init__(self, comm: Any) -> None:
        self._comm = comm

    async def shown_call(self, key: Any = None) -> dict[str, Any]:
        """Return ``output`` of a worker, and ``arguments`` and ``position`` of a running call.

        See :func:`scalable.worker.shown_calls.shown_call`. The answer of a worker that is not ours
        is empty.
        """
        answer = await getattr(self._comm, WorkerHandler.SHOWN_CALL.value)(key=key)
        return answer if isinstance(answer, dict) else {}
