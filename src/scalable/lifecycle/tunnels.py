"""The tunnels of this process to schedulers in remote places."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

from scalable.providers.base import RemotePlace

_TIMEOUT_S = 10.0

_Answer = TypeVar("_Answer")


class Tunnels:
    """One tunnel for each cluster, until the process ends."""

    def __init__(self) -> None:
        self._ports: dict[str, int] = {}
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def port(self, cluster_id: str, place: RemotePlace) -> int:
        """Return the port on loopback that leads to the scheduler of a cluster."""
        with self._lock:
            if cluster_id not in self._ports:
                self._ports[cluster_id] = self._run(partial(_opened, place, cluster_id))
            return self._ports[cluster_id]

    def _run(self, function: Callable[[], Coroutine[Any, Any, _Answer]]) -> _Answer:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(
                target=self._loop.run_forever, name="scalable-tunnels", daemon=True
            ).start()
        return asyncio.run_coroutine_threadsafe(function(), self._loop).result(_TIMEOUT_S)


async def _opened(place: RemotePlace, cluster_id: str) -> int:
    return await place.tunnel(cluster_id).open()


#: The tunnels of this process.
tunnels = Tunnels()
