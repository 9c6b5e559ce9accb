"""`CallClient`: the client with which the tasks of one worker submit other tasks."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import dask
from distributed import Worker
from distributed.client import default_client
from distributed.utils import in_async_call

from scalable.protocol.lending import Lender, wait_in_call

if TYPE_CHECKING:
    from scalable.client.client import ScalableClient

logger = logging.getLogger("scalable.worker")


class CallClient:
    """Client with which the tasks of one worker submit other tasks.

    It is the default client of the process if that is connected to the worker's scheduler, as in
    Dask. Otherwise the worker gets a client of its own.
    """

    def __init__(self, worker: Worker, lender: Lender) -> None:
        self._worker, self._lender = worker, lender
        self._own: ScalableClient | None = None
        self._connecting: asyncio.Future[Any] | None = None

    def get(self, timeout: float | None = None) -> ScalableClient:
        """Return a client of the worker's scheduler that routes by tag (``timeout`` in seconds)."""
        given = self._given()
        if given is not None:
            return given
        if in_async_call(self._worker.loop):
            return self._made(timeout)
        # The client is made in the event loop: an interrupt of the task that needs it first would
        # leave it half made, for all later tasks too.
        client: ScalableClient = wait_in_call(self._worker.loop, self._connected, timeout)
        return client

    async def close(self) -> None:
        """Close the worker's own client."""
        if self._own is not None and self._own.status != "closed":
            await self._own.close_at_once()

    def _given(self) -> ScalableClient | None:
        """Return the default client of the process, if it belongs to the worker's cluster."""
        from scalable.client.client import ScalableClient

        try:
            client = default_client()
        except ValueError:
            return None
        if not isinstance(client, ScalableClient) or client.status != "running":
            return None
        scheduler = client.scheduler
        if scheduler is None or scheduler.address != self._worker.scheduler.address:
            return None
        return client

    async def _connected(self, seconds: float | None) -> ScalableClient:
        client = self._made(seconds)
        if self._connecting is not None:
            await asyncio.shield(self._connecting)  # others wait for it too
        return client

    def _made(self, timeout: float | None) -> ScalableClient:
        """Return the worker's own client, which may not be connected yet."""
        from scalable.client.client import ScalableClient

        if self._own is not None and self._own.status not in ("closing", "closed"):
            return self._own
        worker = self._worker
        client = ScalableClient(
            worker.scheduler,
            loop=worker.loop,
            security=worker.security,
            set_as_default=not _there_is_a_default(),
            asynchronous=True,
            direct_to_workers=True,
            name="worker",
            timeout=timeout or dask.config.get("distributed.comm.timeouts.connect"),
        )
        logger.debug("client %s is made for the calls of %s", client.id, worker.address)
        client.serve_calls_of(self._lender)
        self._own, self._connecting = client, asyncio.ensure_future(_connect(client))
        self._connecting.add_done_callback(self._forget_failed)
        return client

    def _forget_failed(self, connecting: asyncio.Future[Any]) -> None:
        """Leave it to the next task to make a client, if this one could not connect."""
        failed = connecting.cancelled() or connecting.exception() is not None
        if failed and connecting is self._connecting and self._own is not None:
            logger.debug("client %s cannot connect: %s", self._own.id, connecting)
            self._worker.loop.add_callback(self._own.close_at_once)
            self._own = None


async def _connect(client: ScalableClient) -> None:
    await client


def _there_is_a_default() -> bool:
    try:
        default_client()
    except ValueError:
        return False
    return True
