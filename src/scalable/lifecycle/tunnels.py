"""The tunnels of this process to schedulers on remote sites."""

from __future__ import annotations

import threading

from scalable.client.tunnel import in_background
from scalable.providers.base import RemotePlace

_TIMEOUT_S = 10.0


class Tunnels:
    """One tunnel for each cluster, until the process exits."""

    def __init__(self) -> None:
        self._ports: dict[str, int] = {}
        self._lock = threading.Lock()

    def port(self, cluster_id: str, place: RemotePlace) -> int:
        """Return the loopback port of the tunnel to a cluster's scheduler, opened on first use."""
        with self._lock:
            if cluster_id not in self._ports:
                self._ports[cluster_id] = in_background(_opened(place, cluster_id), _TIMEOUT_S)
            return self._ports[cluster_id]


async def _opened(place: RemotePlace, cluster_id: str) -> int:
    return await place.tunnel(cluster_id).open()


#: The tunnels of this process.
tunnels = Tunnels()
