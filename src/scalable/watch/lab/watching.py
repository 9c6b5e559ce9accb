"""Current state of all clusters, read in threads so that Jupyter's event loop never blocks.

Local clusters write their status to disk. Each remote cluster is queried in a thread of its own, so
that an unresponsive one does not delay the others.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeAlias, TypeVar

from scalable.clusters.remote import ask_places
from scalable.clusters.specs import stored_spec
from scalable.errors import ClusterError, ScalableError
from scalable.model import ClusterStatus, PoolStatus
from scalable.records import ClusterDirectory, all_directories, status_of
from scalable.units import format_bytes
from scalable.views.columns import CLUSTERS, ClusterRow

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


@dataclass(frozen=True)
class Seen:
    """Last known state of a cluster."""

    status: ClusterStatus
    directory: ClusterDirectory
    #: Worker size of each pool, as far as it is known.
    sizes: Sizes = field(default_factory=dict)


class BackgroundReading(Generic[_T]):
    """Repeated calls of a function in a thread, one at a time, and the last result.
    An error in :data:`UNREADABLE` keeps the last result. ``first`` is the result until the first
    call has finished, and ``name`` the thread's name.
    """

    def __init__(self, read: Callable[[], _T], first: _T, name: str) -> None:
        self._read, self._name = read, name
        self.result = first
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


#: Local clusters by id, and directories of remote ones by id.
_Near: TypeAlias = tuple[dict[str, Seen], dict[str, ClusterDirectory]]
#: Ids of clusters that are new on this machine, and error messages.
_Answers: TypeAlias = tuple[list[str], list[str]]


class Watch:
    """Last known state of all clusters of this user."""

    def __init__(self) -> None:
        self._sizes: dict[str, Sizes] = {}
        self._near = BackgroundReading[_Near](self._read_near, ({}, {}), "scalable-lab-near")
        self._places = BackgroundReading[_Answers](ask_places, ([], []), "scalable-lab-places")
        self._remote: dict[str, BackgroundReading[Seen | None]] = {}

    def begin(self) -> None:
        """Start reading, so that the first answer is ready when the sidebar needs it."""
        self._near.begin(NEAR_S)

    async def clusters(self, fresh_s: float | None = None) -> dict[str, Seen]:
        """Return the running clusters by id. Waits up to ``PATIENCE_S`` for each kind of cluster.
        Local clusters are not read again within ``fresh_s``, by default ``NEAR_S``.
        """
        self._places.begin(PLACES_S)
        await _wait(self._near.begin(NEAR_S if fresh_s is None else fresh_s))
        near, remote = self._near.result
        self._follow(remote)
        await _wait(*(reading.begin(REMOTE_S) for reading in self._remote.values()))
        seen = dict(near)
        for cluster_id, reading in self._remote.items():
            if (found := reading.result) is None:
                continue
            if time.monotonic() - reading.read_at > SILENT_S:
                found = replace(found, status=replace(found.status, state="unreachable"))
            seen[cluster_id] = found
        shown = [each for each in seen.values() if each.status.state in SHOWN]
        shown.sort(key=lambda each: (each.status.created_at, each.status.id))
        return {each.status.id: each for each in shown if each.status.address}

    def _follow(self, remote: Mapping[str, ClusterDirectory]) -> None:
        for cluster_id in self._remote.keys() - remote.keys():
            del self._remote[cluster_id]
        for cluster_id, directory in remote.items():
            if cluster_id not in self._remote:
                read = _Reader(self._sizes, directory)
                self._remote[cluster_id] = BackgroundReading(
                    read, None, f"scalable-lab-{cluster_id[:8]}"
                )

    def _read_near(self) -> _Near:
        directories, errors = all_directories()
        for error in errors:
            logger.debug("a cluster cannot be shown: %s", error)
        near: dict[str, Seen] = {}
        remote: dict[str, ClusterDirectory] = {}
        for directory in directories:
            try:
                if directory.record().remote:
                    remote[directory.id] = directory
                else:
                    near[directory.id] = _Reader(self._sizes, directory)()
            except UNREADABLE as error:
                logger.debug("cluster %s is not shown: %s", directory.id, error)
        for gone in self._sizes.keys() - near.keys() - remote.keys():
            self._sizes.pop(gone, None)
        return near, remote


class _Reader:
    """Callable that reads the state of one cluster, and only once the sizes of its workers."""

    def __init__(self, sizes: dict[str, Sizes], directory: ClusterDirectory) -> None:
        self._sizes, self._directory = sizes, directory

    def __call__(self) -> Seen:
        status = status_of(self._directory, time.time())
        known = self._sizes.get(status.id)
        if known is None:
            known = self._sizes[status.id] = _sizes_of(self._directory)
        return Seen(status, self._directory, known)


def _sizes_of(directory: ClusterDirectory) -> Sizes:
    try:
        components = stored_spec(directory).components
    except UNREADABLE as error:
        logger.debug("could not read the sizes of the workers of %s: %s", directory.id, error)
        return {}
    return {tag: (each.cpus, each.memory_bytes or 0) for tag, each in components.items()}


async def _wait(*calls: Future[None] | None) -> None:
    """Wait until calls have finished, at most ``PATIENCE_S``. Late calls continue."""
    begun = [asyncio.wrap_future(call) for call in calls if call is not None]
    if begun:
        await asyncio.wait(begun, timeout=PATIENCE_S)


# Rows ---------------------------------------------------------------------------------------------

#: States of clusters that are shown. In other states a cluster has no scheduler.
SHOWN = ("starting", "running", "degraded", "unmanaged", "unreachable")
#: Path of a cluster's pages below the address of Jupyter's server, as in Dask's extension.
PAGES = "dask/dashboard"

#: Cpus and bytes of memory of one worker, by tag.
Sizes = Mapping[str, tuple[float, int]]


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
