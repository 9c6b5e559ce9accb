"""The present state of all clusters, read in threads: Jupyter's event loop never waits for a file.

Near clusters write their status to disk, and reading twenty of them takes milliseconds. Clusters in
remote places are asked, each in a thread of its own, so that one which does not answer delays
nobody.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Generic, TypeAlias, TypeVar

from scalable.errors import ScalableError
from scalable.lab.rows import SHOWN, Sizes
from scalable.lifecycle.remote import ask_places
from scalable.lifecycle.stored_specs import stored_spec
from scalable.records import ClusterDirectory, all_directories, status_of
from scalable.spec import ClusterStatus

logger = logging.getLogger("scalable.lab")

_T = TypeVar("_T")

#: Longest wait of the sidebar for answers that are on their way, in seconds; the last ones are
#: shown then.
PATIENCE_S = 1.0
#: Seconds for which answers are taken for the present ones: of near clusters, of remote ones, and
#: of places about their clusters.
NEAR_S, REMOTE_S, PLACES_S = 0.5, 4.0, 300.0
#: Seconds without an answer after which a remote cluster counts as unreachable.
SILENT_S = 30.0
#: Errors of reading a cluster: it has just ended, its files are damaged, or others have put odd
#: objects into its place.
UNREADABLE = (ScalableError, OSError, ValueError, KeyError, TypeError, AttributeError)


@dataclass(frozen=True)
class Seen:
    """A cluster as it was seen last.

    Attributes
    ----------
    status
        Its status.
    directory
        Its directory.
    sizes
        Size of the workers of each pool, as far as it is known.
    """

    status: ClusterStatus
    directory: ClusterDirectory
    sizes: Sizes = field(default_factory=dict)


class Reading(Generic[_T]):
    """A function that is called in a thread, one call at a time, and its last result.

    Parameters
    ----------
    read
        The function. Errors of :data:`UNREADABLE` leave the last result in place.
    first
        Result before the first call has ended.
    name
        Name of the thread.
    """

    def __init__(self, read: Callable[[], _T], first: _T, name: str) -> None:
        self._read, self._name = read, name
        self.result = first
        self.read_at = -1e9
        self._running: Future[None] | None = None

    def begin(self, fresh_s: float) -> Future[None] | None:
        """Call the function, unless its result is fresh; return the call that is on its way."""
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


#: Id -> near cluster; id -> directory of each remote one.
_Near: TypeAlias = tuple[dict[str, Seen], dict[str, ClusterDirectory]]
#: Ids that are new here, and errors.
_Answers: TypeAlias = tuple[list[str], list[str]]


class Watch:
    """All clusters of this user, as they were seen last."""

    def __init__(self) -> None:
        self._sizes: dict[str, Sizes] = {}
        self._near = Reading[_Near](self._read_near, ({}, {}), "scalable-lab-near")
        self._places = Reading[_Answers](ask_places, ([], []), "scalable-lab-places")
        self._remote: dict[str, Reading[Seen | None]] = {}

    def begin(self) -> None:
        """Begin to read, so that the first answer is there when somebody looks."""
        self._near.begin(NEAR_S)

    async def clusters(self, fresh_s: float | None = None) -> dict[str, Seen]:
        """Return id -> cluster, for those that run; wait a moment for answers.

        Parameters
        ----------
        fresh_s
            Seconds for which near clusters are not read again; None for a moment.
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
                self._remote[cluster_id] = Reading(read, None, f"scalable-lab-{cluster_id[:8]}")

    def _read_near(self) -> _Near:
        directories, errors = all_directories()
        for error in errors:
            logger.debug("a cluster is not shown: %s", error)
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
    """Function that reads one cluster; the sizes of its workers are read once.

    Parameters
    ----------
    sizes
        Id -> sizes that are known.
    directory
        The cluster.
    """

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
        logger.debug("the sizes of the workers of %s are not known: %s", directory.id, error)
        return {}
    return {tag: (each.cpus, each.memory_bytes or 0) for tag, each in components.items()}


async def _wait(*calls: Future[None] | None) -> None:
    """Wait until calls have ended, or the patience is over; the calls go on."""
    begun = [asyncio.wrap_future(call) for call in calls if call is not None]
    if begun:
        await asyncio.wait(begun, timeout=PATIENCE_S)
