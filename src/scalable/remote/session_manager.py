"""Manager in the creator's process, for a cluster whose scheduler runs elsewhere."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from distributed.core import rpc

from scalable.errors import ClusterError
from scalable.manager.pools import Pool
from scalable.manager.reconciler import Reconciler
from scalable.manager.scheduler_link import RpcLink
from scalable.protocol.attachments import Attachment
from scalable.protocol.handlers import SchedulerCalls

logger = logging.getLogger("scalable.remote")

CONNECT_TIMEOUT_S = 10.0
ATTACH_TIMEOUT_S = 60.0
LEAVE_TIMEOUT_S = 10.0
POLL_S = 0.2


def scheduler_comm(address: str, security: Any) -> Any:
    """Return Dask's ``rpc`` object for a scheduler with these credentials."""
    arguments = security.get_connection_args("client")
    return rpc(address, timeout=CONNECT_TIMEOUT_S, connection_args=arguments)  # type: ignore[no-untyped-call]


async def answer_of(
    ask: Callable[[], Awaitable[Any]], check: Callable[[], Awaitable[object]]
) -> Any:
    """Return the result of ``ask``, which is repeated while the scheduler's program starts.

    ``check`` raises an error if the scheduler has ended. Raises ClusterError if the scheduler does
    not answer within 60 s.
    """
    deadline = time.monotonic() + ATTACH_TIMEOUT_S
    while True:
        try:
            return await asyncio.wait_for(ask(), CONNECT_TIMEOUT_S)
        except (OSError, TimeoutError) as error:
            await check()
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"the scheduler does not answer through the tunnel: {error or 'no answer'}"
                ) from error
        await asyncio.sleep(POLL_S)


class SessionManager:
    """Starts and stops units for a scheduler behind a tunnel."""

    def __init__(
        self, attachment: Attachment, incarnation: str, pools: Callable[[], Iterable[Pool]]
    ) -> None:
        # The incarnation makes the names of units unique.
        self.reconciler = Reconciler(incarnation)
        self._pools = pools
        self._attachment = attachment
        self._comm: Any = None

    async def start(
        self,
        address: str,
        security: Any,
        check: Callable[[], Awaitable[object]],
    ) -> None:
        """Attach to the scheduler at ``address``, and start to reconcile the pools.

        ``check`` raises an error if the scheduler has ended. Raises ClusterError if the scheduler
        does not answer in time or refuses the manager.
        """
        own = self._attachment
        self._comm = scheduler_comm(address, security)
        calls = SchedulerCalls(self._comm)
        answer = await answer_of(lambda: calls.attach(own), check)
        if not answer["accepted"]:
            raise ClusterError(f"the scheduler refuses its manager: {answer['reason']}")
        for pool in self._pools():
            self.reconciler.inventory.add_pool(pool)
        self.reconciler.start(RpcLink(self._comm, own.manager, own.nonce))
        self.reconciler.wake()

    async def close(self) -> None:
        """Stop all units, and report the end of the cluster to the scheduler."""
        await self.reconciler.close()
        if self._comm is None:
            return
        own, calls = self._attachment, SchedulerCalls(self._comm)
        try:
            await asyncio.wait_for(calls.leave(own.manager, own.nonce, gone=True), LEAVE_TIMEOUT_S)
            await asyncio.wait_for(calls.end("its creator has closed it"), LEAVE_TIMEOUT_S)
        except (OSError, TimeoutError) as error:
            logger.debug("the scheduler was not told of the end: %s", error)
        await self._comm.close_rpc()
