"""`Upkeep`: the occasional garbage collection by processes that store results."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from hashlib import sha256
from typing import Final, Protocol

from scalable.cache.leases import Lease
from scalable.cache.outcomes import Collected, Usage
from scalable.cache.places import EntryBackend
from scalable.errors import ScalableError
from scalable.units import counted, format_bytes

logger = logging.getLogger("scalable.cache")

#: Minimum number of seconds between two collections of one store, by any process.
INTERVAL_S: Final = 3600.0
#: Share of the limit to which a store that exceeds it is reduced, so that collections, which read
#: all entries, are rare.
REDUCED: Final = 0.9
#: Key of the lease of the collecting process.
LEASE: Final = sha256(b"scalable: collection of garbage").hexdigest()
_NOTE: Final = "collected"


class Collectable(Protocol):
    """Store methods that a collection needs."""

    def usage(self) -> Usage:
        """Return the number and the size of the entries."""

    def collect(self, *, limit: int) -> Collected:
        """Remove results until the store has at most ``limit`` bytes."""

    def lease(self, key: str, owner: str) -> Lease | None:
        """Return a lease, or None if another process has it."""


class Upkeep:
    """Garbage collections of one store, in a thread of this process.
    The time of the last collection is in the store, so all processes together run one per interval.
    """

    def __init__(self, place: EntryBackend, store: Collectable) -> None:
        self._place, self._store = place, store
        self._next = float("-inf")
        self._process = 0
        self._lock = threading.Lock()

    def after_store(self, limit: int | None) -> None:
        """Start a collection if one is due. Call it after storing a result."""
        if limit is None:
            return
        now = time.monotonic()
        if now < self._next and self._process == os.getpid():
            return
        with self._lock:
            if now < self._next and self._process == os.getpid():
                return
            self._next, self._process = now + INTERVAL_S, os.getpid()
        threading.Thread(
            target=self._run, args=(limit,), name="scalable-upkeep", daemon=True
        ).start()

    def _run(self, limit: int) -> None:
        try:
            if not self._is_due():
                return
            lease = self._store.lease(LEASE, socket.gethostname())
            if lease is None:
                return
            with lease:
                if self._is_due():
                    self._reduce(limit)
        except (OSError, ScalableError) as error:
            logger.debug("could not collect garbage in the results store: %s", error)

    def _is_due(self) -> bool:
        """Return whether the last collection was an interval ago, by the store's clock."""
        try:
            last = float(self._place.read_note(_NOTE) or "-inf")
        except ValueError:
            return True
        # A time in the future was written by a clock that was wrong.
        return not 0 <= self._place.now() - last < INTERVAL_S

    def _reduce(self, limit: int) -> None:
        # Noted first: a collection that is killed each time must not start after each task.
        self._place.write_note(_NOTE, repr(self._place.now()))
        used = self._store.usage()
        found = self._store.collect(limit=limit if used.size <= limit else int(limit * REDUCED))
        if found.removed:
            logger.info(
                "removed %s of %s from the results store, whose limit is %s",
                counted(found.removed, "result"),
                format_bytes(found.size),
                format_bytes(limit),
            )
