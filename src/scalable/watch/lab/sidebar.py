"""Clusters of JupyterLab's sidebar: their current state, their rows, and the buttons' actions."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar
from urllib.parse import parse_qs, urlsplit

from scalable.clusters import control
from scalable.clusters.creation import DetachOptions
from scalable.clusters.ending import end
from scalable.clusters.record import default_name
from scalable.clusters.remote import ask_places
from scalable.clusters.services import wait_until_ready
from scalable.clusters.specs import stored_spec
from scalable.errors import ClusterError, ScalableError
from scalable.liveness import is_alive, place_of
from scalable.model import ClusterStatus, PoolStatus
from scalable.protocol.addresses import is_loopback, link_host
from scalable.protocol.handlers import Handler
from scalable.protocol.servers import PARAMETER, cookie_name
from scalable.providers.registry import provider_traits
from scalable.records import AccessFile, ClusterDirectory, all_directories, find, status_of
from scalable.units import format_bytes
from scalable.views.columns import CLUSTERS, ClusterRow

if TYPE_CHECKING:
    from scalable.client.attached import DiscoveredCluster

logger = logging.getLogger("scalable.watch.lab")

_T = TypeVar("_T")

#: Maximum seconds that the sidebar waits for pending answers. Then the last ones are shown.
PATIENCE_S = 1.0
#: Seconds for which answers count as current: of local clusters, of remote ones, and of backends
#: about their clusters.
NEAR_S, REMOTE_S, PLACES_S = 0.5, 4.0, 300.0
#: Seconds without an answer after which a remote cluster counts as unreachable.
SILENT_S = 30.0
#: Errors of reading a cluster: it has just stopped, its files are damaged, or its backend has
#: unexpected objects.
UNREADABLE = (ScalableError, OSError, ValueError, KeyError, TypeError, AttributeError)
#: States of clusters that are shown. In other states a cluster has no scheduler.
SHOWN = ("starting", "running", "degraded", "unmanaged", "unreachable")
#: Path of a cluster's pages below the address of Jupyter's server, as in Dask's extension.
PAGES = "dask/dashboard"

#: Cpus and bytes of memory of one worker, by tag.
Sizes: TypeAlias = Mapping[str, tuple[float, int]]


@dataclass(frozen=True)
class Seen:
    """Last known state of a cluster."""

    status: ClusterStatus
    directory: ClusterDirectory
    #: Worker size of each pool, as far as it is known.
    sizes: Sizes


class BackgroundReading(Generic[_T]):
    """Repeated calls of a function in a thread, one at a time, and the last result.
    An error in :data:`UNREADABLE` keeps the last result. ``name`` is the thread's name.
    """

    def __init__(self, read: Callable[[], _T], name: str) -> None:
        self._read, self._name = read, name
        self.result: _T | None = None
        self.read_at = -1e9
        self._running: Future[None] | None = None

    def begin(self, fresh_s: float) -> Future[None] | None:
        """Call the function unless its result is fresh, and return the pending call, if any."""
        if self._running is not None and not self._running.done():
            return self._running
        if time.monotonic() - self.read_at < fresh_s:
            return None
        self._running = Future()
        threading.Thread(
            target=self._call, args=(self._running,), name=self._name, daemon=True
        ).start()
        return self._running

    def _call(self, done: Future[None]) -> None:
        try:
            self.result = self._read()
            self.read_at = time.monotonic()
        except UNREADABLE as error:
            logger.debug("%s: %s", self._name, error)
        finally:
            done.set_result(None)


def _directories() -> dict[str, tuple[ClusterDirectory, bool]]:
    """Return the directories of clusters by id, and whether the clusters are remote."""
    directories, errors = all_directories()
    for error in errors:
        logger.debug("a cluster cannot be shown: %s", error)
    found = {}
    for directory in directories:
        try:
            found[directory.id] = directory, directory.record().remote
        except UNREADABLE as error:
            logger.debug("cluster %s is not shown: %s", directory.id, error)
    return found


def _reading_of(directory: ClusterDirectory) -> BackgroundReading[Seen]:
    def read() -> Seen:
        return Seen(status_of(directory, time.time()), directory, sizes_of(directory.path))

    return BackgroundReading(read, f"scalable-lab-{directory.id[:8]}")


def _latest(reading: BackgroundReading[Seen]) -> Seen | None:
    seen = reading.result
    if seen is None or time.monotonic() - reading.read_at <= SILENT_S:
        return seen
    return replace(seen, status=replace(seen.status, state="unreachable"))


@functools.lru_cache(maxsize=1024)
def sizes_of(path: Path) -> Sizes:
    """Return the sizes of a cluster's workers, which do not change; {} if unreadable."""
    try:
        components = stored_spec(ClusterDirectory(path)).components
    except UNREADABLE as error:
        logger.debug("could not read the sizes of the workers of %s: %s", path.name, error)
        return {}
    return {tag: (each.cpus, each.memory_bytes or 0) for tag, each in components.items()}


async def _wait(*calls: Future[None] | None) -> None:
    """Wait until calls have finished, at most ``PATIENCE_S``. Late calls continue."""
    begun = [asyncio.wrap_future(call) for call in calls if call is not None]
    if begun:
        await asyncio.wait(begun, timeout=PATIENCE_S)


# Rows ---------------------------------------------------------------------------------------------


def row(status: ClusterStatus, sizes: Sizes, base_url: str, name: str = "") -> dict[str, Any]:
    """Return the row of a cluster.
    Cores and memory of pools without ``sizes`` are not counted. ``base_url`` is the path of
    Jupyter's server, with a slash at both ends. ``name`` is the cluster's by default.
    """
    live = {tag: pool.running for tag, pool in status.pools.items()}
    known = [(count, *sizes[tag]) for tag, count in live.items() if tag in sizes]
    shown = name or status.name
    model: dict[str, Any] = {
        "id": status.id,
        "name": f"{shown} (unreachable)" if status.state == "unreachable" else shown,
        "scheduler_address": status.address,
        "dashboard_link": f"{base_url}{PAGES}/{status.id}/scalable/" if status.dashboard else "",
        "workers": CLUSTERS["workers"].of(ClusterRow(status, "", 0.0)),
        "memory": format_bytes(sum(count * memory for count, _, memory in known)),
        "cores": round(sum(count * cpus for count, cpus, _ in known), 2),
    }
    followed = list(status.adaptive.values())
    if len(status.pools) == len(followed) == 1 and isinstance(followed[0], list | tuple):
        model["adapt"] = dict(zip(("minimum", "maximum"), followed[0], strict=False))
    return model


def names(statuses: Iterable[ClusterStatus]) -> dict[str, str]:
    """Map ids to unique names, since sessions of one project may share a name."""
    listed = list(statuses)
    often = Counter(status.name for status in listed)
    return {
        s.id: s.name if often[s.name] == 1 else f"{s.name} ({s.id.partition('-')[0]})"
        for s in listed
    }


def shares(name: str, total: Any, pools: Mapping[str, PoolStatus]) -> dict[str, int]:
    """Divide the total worker count from the sidebar among the pools, by tag.
    The proportions of several pools are kept, and each pool keeps a worker if there are enough.
    Raises ClusterError for an invalid number, a cluster without pools, or several pools without
    workers.
    """
    if isinstance(total, bool) or not isinstance(total, int) or total < 0:
        raise ClusterError(f"cluster {name!r} cannot have {total!r} workers: give 0 or more")
    if len(pools) == 1:
        return dict.fromkeys(pools, total)
    before = {tag: pool.wanted for tag, pool in pools.items() if pool.wanted}
    if total == 0:
        return dict.fromkeys(pools, 0)
    if not before:
        tags = " ".join(f"{tag}=N" for tag in sorted(pools))
        raise ClusterError(
            f"cluster {name!r} has {len(pools)} pools and no workers, so it is unclear "
            f"how to divide {total} workers",
            hint=f"run `scalable scale {name} {tags}`" if pools else None,
        )
    exact = {tag: total * wanted / sum(before.values()) for tag, wanted in before.items()}
    counts = {tag: int(count) for tag, count in exact.items()}
    largest = sorted(counts, key=lambda tag: (counts[tag] - exact[tag], tag))
    for tag in largest[: total - sum(counts.values())]:
        counts[tag] += 1
    if total >= len(counts):
        for tag in [tag for tag, count in counts.items() if count == 0]:
            counts[tag] = 1
            counts[max(counts, key=lambda t: counts[t])] -= 1
    return counts


def bounds(name: str, adapt: Any, pools: Mapping[str, PoolStatus]) -> tuple[str, int, int | None]:
    """Return the only pool's tag and bounds. ClusterError for several pools or invalid bounds."""
    if len(pools) != 1:
        raise ClusterError(
            f"cluster {name!r} has {len(pools)} pools, but the sidebar can set bounds for only one",
            hint="in Python: client.cluster.adapt(TAG, MINIMUM, MAXIMUM)",
        )
    minimum, maximum = (adapt.get(key) for key in ("minimum", "maximum"))
    whole = all(type(n) is int and n >= 0 for n in (minimum, maximum) if n is not None)
    if not whole or minimum is None or (maximum is not None and maximum < minimum):
        raise ClusterError(
            f"cluster {name!r} cannot adapt between {minimum!r} and {maximum!r} workers: give "
            "whole numbers, the smaller one first"
        )
    return next(iter(pools)), minimum, maximum


# Sidebar ------------------------------------------------------------------------------------------


class Sidebar:
    """Scalable's clusters in the sidebar of the Jupyter server at ``base_url`` (``/user/ann/``).
    Each cluster is read in a thread of its own, so that a remote one that does not answer delays
    neither the others nor Jupyter's event loop.
    """

    def __init__(self, base_url: str) -> None:
        self.base_url = base_url
        self._directories = BackgroundReading(_directories, "scalable-lab-near")
        self._places = BackgroundReading(ask_places, "scalable-lab-places")
        self._readings: dict[str, BackgroundReading[Seen]] = {}
        #: Time at which a cluster was disconnected, by its id.
        self._hidden: dict[str, float] = {}
        self._addresses: set[str] = set()

    def begin(self) -> None:
        """Start reading, so that the first answer is ready when the sidebar needs it."""
        self._directories.begin(NEAR_S)

    async def running(self, *, now: bool = False) -> dict[str, Seen]:
        """Return the running clusters by id, the oldest first. Waits up to ``2 * PATIENCE_S``.
        ``now`` reads local clusters again, even if they were read within ``NEAR_S``.
        """
        self._places.begin(PLACES_S)
        near_s = 0.0 if now else NEAR_S
        await _wait(self._directories.begin(near_s))
        directories = self._directories.result or {}
        self._readings = {
            cluster_id: self._readings.get(cluster_id) or _reading_of(directory)
            for cluster_id, (directory, _) in directories.items()
        }
        await _wait(
            *(
                reading.begin(REMOTE_S if directories[cluster_id][1] else near_s)
                for cluster_id, reading in self._readings.items()
            )
        )
        found = [seen for each in self._readings.values() if (seen := _latest(each)) is not None]
        shown = [each for each in found if each.status.state in SHOWN and each.status.address]
        shown.sort(key=lambda each: (each.status.created_at, each.status.id))
        return {each.status.id: each for each in shown}

    async def clusters(self, *, now: bool = False) -> dict[str, Seen]:
        """Return the clusters by id, except disconnected ones. ``now`` forces a new reading."""
        seen = await self.running(now=now)
        self._addresses |= {str(each.status.address) for each in seen.values()}
        return {key: each for key, each in seen.items() if not self._is_hidden(each)}

    def _is_hidden(self, seen: Seen) -> bool:
        hidden_at = self._hidden.get(seen.status.id)
        return hidden_at is not None and shown_at(seen.directory) <= hidden_at

    async def models(self) -> list[dict[str, Any]]:
        """Return the rows of all of scalable's clusters, the oldest first."""
        seen = await self.clusters()
        named = names(each.status for each in seen.values())
        return [
            row(each.status, each.sizes, self.base_url, named[key]) for key, each in seen.items()
        ]

    async def find(self, cluster_id: str) -> Seen | None:
        """Return a running cluster, even a disconnected one, or None if it is not scalable's."""
        seen = (await self.running()).get(cluster_id)
        return seen or (await self.running(now=True)).get(cluster_id)

    def not_ours(self, models: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return those rows of Dask's own list that describe other clusters."""
        return [m for m in models if m["scheduler_address"] not in self._addresses]

    # Buttons --------------------------------------------------------------------------------------

    async def scale(self, seen: Seen, total: Any) -> None:
        """Set a cluster's total of workers. Raises ClusterError above the target's limit."""
        name, pools = seen.status.name, seen.status.pools
        counts = shares(name, total, pools)
        beyond = await asyncio.to_thread(control.beyond_most, seen.status.id, counts)
        if beyond is not None:
            words = " ".join(f"{tag}={count}" for tag, count in counts.items())
            raise ClusterError(
                f"a total of {beyond[0]} workers exceeds {beyond[1]} of {name!r}",
                hint=f"run `scalable scale {name} {words} --yes` if you want them",
            )
        await asyncio.to_thread(control.scale, seen.status.id, counts)

    async def adapt(self, seen: Seen, adapt: Any) -> None:
        """Make a cluster's only pool adaptive."""
        tag, minimum, maximum = bounds(seen.status.name, adapt, seen.status.pools)
        wanted: dict[str, Any] = {"tag": tag, "minimum": minimum, "maximum": maximum}
        await asyncio.to_thread(control.ask, seen.directory, Handler.ADAPT, **wanted)

    async def leave(self, seen: Seen) -> bool:
        """Stop a cluster that this process started and return True, or hide any other cluster."""
        if self.started_here(seen):
            logger.debug("the sidebar stops cluster %s", seen.status.name)
            await asyncio.to_thread(end, seen.status.id)
            await self.running(now=True)
            return True
        self._hidden[seen.status.id] = time.time()
        return False

    @staticmethod
    def started_here(seen: Seen) -> bool:
        """Return whether this process, Jupyter's server, has started a cluster."""
        creator = seen.directory.record().creator
        return creator.get("pid") == os.getpid() and is_alive(creator) is True


# Clusters that were disconnected from the sidebar, and are shown again ----------------------------


_MARK = "shown-in-lab"


def show(name: str) -> None:
    """Show a cluster in JupyterLab's sidebar again, after it was disconnected there.
    ``name`` may be ``provider/name`` or a prefix of the id. ClusterError unless one matches.
    """
    path = find(name).path / _MARK
    path.touch(mode=0o600)
    # The time that touch sets is that of the kernel's last tick, some milliseconds ago.
    os.utime(path, ns=(now := time.time_ns(), now))


def shown_at(directory: ClusterDirectory) -> float:
    """Return the epoch seconds of the last :func:`show` of a cluster, or 0."""
    try:
        return (directory.path / _MARK).stat().st_mtime
    except OSError:
        return 0.0


# Clusters of the button "+NEW", and of dask-ctl ---------------------------------------------------

READY_TIMEOUT_S = 600.0


def lab_cluster(
    manifest: str | os.PathLike[str] | None = None,
    target: str | None = None,
    name: str | None = None,
    *,
    dashboard_address: str | None = None,
    asynchronous: bool = True,
) -> Any:
    """Start a detached cluster, and return a ``DiscoveredCluster``, or an awaitable of one.
    ``close()`` stops the cluster for all clients, because tools stop a cluster by closing it. The
    default name consists of project and target, with a number if it is taken. ``dashboard_address``
    is as for ``scalable up --dashboard``, by default the target's or any free port of this machine.
    """
    from scalable.client.attached import DiscoveredCluster

    ready = functools.partial(_ready, manifest, target, name, dashboard_address)
    if not asynchronous:
        return DiscoveredCluster(ready(), owner=True)

    async def started() -> DiscoveredCluster:
        access = await asyncio.to_thread(ready)
        return await DiscoveredCluster(access, asynchronous=True, owner=True)

    return started()


def _ready(
    manifest: str | os.PathLike[str] | None,
    target: str | None,
    name: str | None,
    dashboard_address: str | None,
) -> AccessFile:
    from scalable.session import ScalableSession

    session = ScalableSession.from_yaml(manifest, target)
    taken = {directory.record().name for directory in all_directories()[0]}
    wanted = name or default_name(session.spec)
    numbered = (wanted if n == 1 else f"{wanted}-{n}" for n in range(1, len(taken) + 2))
    if not provider_traits(session.spec.provider_name).remote:
        own = session.spec.options.get("dashboard_address")
        dashboard_address = dashboard_address or own or ":0"  # any free port, on loopback
    options = DetachOptions(
        name=next(n for n in numbered if n not in taken), dashboard_address=dashboard_address
    )
    directory = session.create(session.plan(), options)
    wait_until_ready(directory, timeout_s=READY_TIMEOUT_S)
    return AccessFile.of(directory)


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
