"""The clusters of the sidebar, and the actions of its buttons."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Iterable
from typing import Any

from scalable.clusters import control
from scalable.clusters.ending import end
from scalable.errors import ClusterError
from scalable.liveness import is_alive
from scalable.protocol.handlers import SchedulerCalls
from scalable.watch.lab import watching
from scalable.watch.lab.showing import shown_at
from scalable.watch.lab.watching import Seen, Watch

logger = logging.getLogger("scalable.watch.lab")


class Sidebar:
    """Our clusters in the sidebar of the Jupyter server at ``base_url``, such as ``/user/ann/``."""

    def __init__(self, base_url: str, watch: Watch) -> None:
        self.base_url = base_url
        self._watch = watch
        #: Time at which a cluster was disconnected, by its id.
        self._hidden: dict[str, float] = {}
        self._addresses: set[str] = set()

    async def clusters(self, *, now: bool = False) -> dict[str, Seen]:
        """Return the clusters by id without disconnected ones, read again if ``now``."""
        seen = await self._watch.clusters(0.0 if now else None)
        self._addresses |= {str(each.status.address) for each in seen.values()}
        return {key: each for key, each in seen.items() if not self._is_hidden(each)}

    def _is_hidden(self, seen: Seen) -> bool:
        hidden_at = self._hidden.get(seen.status.id)
        return hidden_at is not None and shown_at(seen.directory) <= hidden_at

    async def models(self) -> list[dict[str, Any]]:
        """Return the rows of all our clusters, the oldest first."""
        seen = await self.clusters()
        names = watching.names(each.status for each in seen.values())
        return [
            watching.row(each.status, each.sizes, self.base_url, names[key])
            for key, each in seen.items()
        ]

    async def find(self, cluster_id: str) -> Seen | None:
        """Return a running cluster, even a disconnected one, or None if it is not one of ours."""
        seen = (await self._watch.clusters()).get(cluster_id)
        return seen or (await self._watch.clusters(0.0)).get(cluster_id)

    def not_ours(self, models: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the rows of Dask's own list that are not about our clusters."""
        return [m for m in models if m["scheduler_address"] not in self._addresses]

    # Buttons --------------------------------------------------------------------------------------

    async def scale(self, seen: Seen, total: Any) -> None:
        """Set a cluster's total of workers. Raises ClusterError above ``max_workers``."""
        name, pools = seen.status.name, seen.status.pools
        counts = watching.shares(name, total, pools)
        beyond = await asyncio.to_thread(control.beyond_most, seen.status.id, counts)
        if beyond is not None:
            words = " ".join(f"{tag}={count}" for tag, count in counts.items())
            raise ClusterError(
                f"a total of {beyond[0]} workers exceeds max_workers {beyond[1]} of {name!r}",
                hint=f"run `scalable scale {name} {words} --yes` if you want them",
            )
        await asyncio.to_thread(control.scale, seen.status.id, counts)

    async def adapt(self, seen: Seen, adapt: Any) -> None:
        """Make a cluster's only pool adaptive. See :func:`scalable.watch.lab.watching.bounds`."""
        tag, minimum, maximum = watching.bounds(seen.status.name, adapt, seen.status.pools)

        def order(scheduler: SchedulerCalls) -> Any:
            return scheduler.adapt(tag, minimum, maximum)

        await asyncio.to_thread(control.ask, seen.directory, order)

    async def leave(self, seen: Seen) -> bool:
        """Stop a cluster that this process started and return True, or hide any other."""
        if self.started_here(seen):
            logger.debug("cluster %s is ended by the sidebar", seen.status.name)
            await asyncio.to_thread(end, seen.status.id)
            await self._watch.clusters(0.0)
            return True
        self._hidden[seen.status.id] = time.time()
        return False

    @staticmethod
    def started_here(seen: Seen) -> bool:
        """Return whether this process, Jupyter's server, has started a cluster."""
        creator = seen.directory.record().creator
        return creator.get("pid") == os.getpid() and is_alive(creator) is True
