"""The present state of all clusters, read in threads so that Jupyter's event loop never blocks.

Local clusters write their status to disk. Each remote cluster is queried in a thread of its own, so
that one without an answer delays no other.
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
    """The last known state of a cluster."""

    status: ClusterStatus
    directory: ClusterDirectory
    #: Size of the workers of each pool, as far as it is known.
    sizes: Sizes = field(default_factory=dict)


class Reading(Generic[_T]):
    """A function that is called in a thread, one call at a time, and its last result.

    Errors of :data:`UNREADABLE` keep the last result. ``first`` is the result before the first call
    has finished, and ``name`` that of the thread.
    """

    def __init__(self, read: Callable[[], _T], first: _T, name: str) -> None:
        self._read, self._name = read, name
        self.result = first
        self.read_at = -1e9
        self._running: Future[None] | None = None

    def begin(self, fresh_s: float) -> Future[None] | None:
        """Call the function, unless its result is fresh, and return the pending call, if any."""
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
#: Ids that are new here, and errors.
_Answers: TypeAlias = tuple[list[str], list[str]]


class Watch:
    """The last known state of all clusters of this user."""

    def __init__(self) -> None:
        self._sizes: dict[str, Sizes] = {}
        self._near = Reading[_Near](self._read_near, ({}, {}), "scalable-lab-near")
        self._places = Reading[_Answers](ask_places, ([], []), "scalable-lab-places")
        self._remote: dict[str, Reading[Seen | None]] = {}

    def begin(self) -> None:
        """Start reading, so that the first answer is ready when the sidebar needs it."""
        self._near.begin(NEAR_S)

    async def clusters(self, fresh_s: float | None = None) -> dict[str, Seen]:
        """Return the running clusters by id. Waits up to ``PATIENCE_S`` for each kind of answer.

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
    """Function that reads one cluster. The sizes of its workers are read once."""

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
    """Wait until calls have finished, or ``PATIENCE_S`` is over. The calls continue."""
    begun = [asyncio.wrap_future(call) for call in calls if call is not None]
    if begun:
        await asyncio.wait(begun, timeout=PATIENCE_S)
