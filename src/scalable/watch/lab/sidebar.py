"""Clusters of the sidebar, and the actions of its buttons."""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

from scalable.clusters import control
from scalable.clusters.ending import end
from scalable.errors import ClusterError
from scalable.liveness import is_alive, place_of
from scalable.protocol.addresses import is_loopback, link_host
from scalable.protocol.handlers import SchedulerCalls
from scalable.protocol.servers import PARAMETER, cookie_name
from scalable.records import ClusterDirectory, find
from scalable.watch.lab import watching
from scalable.watch.lab.watching import Seen, Watch

logger = logging.getLogger("scalable.watch.lab")


class Sidebar:
    """Scalable's clusters in the sidebar of the Jupyter server at ``base_url`` (``/user/ann/``)."""

    def __init__(self, base_url: str, watch: Watch) -> None:
        self.base_url = base_url
        self._watch = watch
        #: Time at which a cluster was disconnected, by its id.
        self._hidden: dict[str, float] = {}
        self._addresses: set[str] = set()

    async def clusters(self, *, now: bool = False) -> dict[str, Seen]:
        """Return the clusters by id, except disconnected ones. ``now`` forces a new reading."""
        seen = await self._watch.clusters(0.0 if now else None)
        self._addresses |= {str(each.status.address) for each in seen.values()}
        return {key: each for key, each in seen.items() if not self._is_hidden(each)}

    def _is_hidden(self, seen: Seen) -> bool:
        hidden_at = self._hidden.get(seen.status.id)
        return hidden_at is not None and shown_at(seen.directory) <= hidden_at

    async def models(self) -> list[dict[str, Any]]:
        """Return the rows of all of scalable's clusters, the oldest first."""
        seen = await self.clusters()
        names = watching.names(each.status for each in seen.values())
        return [
            watching.row(each.status, each.sizes, self.base_url, names[key])
            for key, each in seen.items()
        ]

    async def find(self, cluster_id: str) -> Seen | None:
        """Return a running cluster, even a disconnected one, or None if it is not scalable's."""
        seen = (await self._watch.clusters()).get(cluster_id)
        return seen or (await self._watch.clusters(0.0)).get(cluster_id)

    def not_ours(self, models: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return those rows of Dask's own list that describe other clusters."""
        return [m for m in models if m["scheduler_address"] not in self._addresses]

    # Buttons --------------------------------------------------------------------------------------

    async def scale(self, seen: Seen, total: Any) -> None:
        """Set a cluster's total of workers. Raises ClusterError above the target's limit."""
        name, pools = seen.status.name, seen.status.pools
        counts = watching.shares(name, total, pools)
        beyond = await asyncio.to_thread(control.beyond_most, seen.status.id, counts)
        if beyond is not None:
            words = " ".join(f"{tag}={count}" for tag, count in counts.items())
            raise ClusterError(
                f"a total of {beyond[0]} workers exceeds {beyond[1]} of {name!r}",
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
        """Stop a cluster that this process started and return True, or hide any other cluster."""
        if self.started_here(seen):
            logger.debug("the sidebar stops cluster %s", seen.status.name)
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


# Clusters that were disconnected from the sidebar, and are shown again ----------------------------


SHOWN = "shown-in-lab"


def show(name: str) -> None:
    """Show a cluster in JupyterLab's sidebar again, after it was disconnected there.
    ``name`` may be ``provider/name`` or a prefix of the id. ClusterError unless one matches.
    """
    path = find(name).path / SHOWN
    path.touch(mode=0o600)
    # The time that touch sets is that of the kernel's last tick, some milliseconds ago.
    os.utime(path, ns=(now := time.time_ns(), now))


def shown_at(directory: ClusterDirectory) -> float:
    """Return the epoch seconds of the last :func:`show` of a cluster, or 0."""
    try:
        return (directory.path / SHOWN).stat().st_mtime
    except OSError:
        return 0.0


# Connection from Jupyter's server to the pages of a cluster's scheduler ---------------------------


@dataclass(frozen=True)
class Page:
    """The HTTP server of one scheduler."""

    host: str
    port: int
    #: Token that the server requires in a cookie.
    token: str = field(repr=False)
    #: Context that verifies the server. None for a server without TLS.
    tls: ssl.SSLContext | None = None

    def url(self, path: str, query: str, *, socket: bool = False) -> str:
        """Return a page's URL without the token. ``path`` starts with a slash."""
        scheme = ("ws" if socket else "http") + ("" if self.tls is None else "s")
        address = f"{scheme}://{link_host(self.host)}:{self.port}{path}"
        return f"{address}?{query}" if query else address

    @property
    def cookie(self) -> str:
        """Value of the header ``Cookie`` that gives access to the pages."""
        return f"{cookie_name(self.token)}={self.token}"


def page_of(seen: Seen) -> Page:
    """Return the HTTP server of a cluster's scheduler.
    The token is never sent to another process, such as another user's on the port of a scheduler
    that has exited. Raises ClusterError if the cluster has no dashboard, its scheduler has exited,
    or it listens on another machine's loopback.
    """
    name, link = seen.status.name, seen.status.dashboard
    if not link:
        raise ClusterError(
            f"cluster {name!r} has no dashboard",
            hint="start it with `scalable up --dashboard :0`",
        )
    parts = urlsplit(link)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    known = seen.directory.scheduler() or {}
    alive = is_alive(known)
    if alive is False:
        raise ClusterError(f"the scheduler of cluster {name!r} has stopped")
    if alive is None and is_loopback(f"tcp://{parts.netloc}"):
        raise ClusterError(
            f"the dashboard of cluster {name!r} can be shown only on the machine of "
            f"{place_of(known)}",
            hint="start the cluster with `scalable up --dashboard HOST:0` to open it from other "
            "machines",
        )
    token = parse_qs(parts.query).get(PARAMETER, [""])[0]
    tls = _trusting(seen) if parts.scheme == "https" else None
    return Page(parts.hostname or "", port, token, tls)


def _trusting(seen: Seen) -> ssl.SSLContext:
    """Return a context that trusts the cluster's own CA, without checking host names."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(cadata=seen.directory.pem()["tls_ca_file"])
    return context
