"""Archives of the clients' files, in parts, for workers without the clients' file system."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from dataclasses import dataclass, field

from distributed import Scheduler

from scalable.protocol.handlers import Handler, offer

logger = logging.getLogger("scalable.scheduler")

#: Bytes of archives that are kept. Beyond that, the least recently used are dropped.
MOST_KEPT = 1 << 28
#: Seconds to wait for an archive that a client has announced.
ARRIVAL_TIMEOUT_S = 120.0


@dataclass
class _Archive:
    """Archive, some parts of which may not have arrived yet."""

    parts: dict[int, bytes] = field(default_factory=dict)
    #: Monotonic time at which it was announced or its last part arrived.
    heard_at: float = field(default_factory=time.monotonic)
    #: Set once all parts have arrived.
    complete: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def size(self) -> int:
        return sum(map(len, self.parts.values()))


class FileStore:
    """Archives by digest. ``sent`` counts how often a whole archive was sent to a worker."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._archives: dict[str, _Archive] = {}
        self.sent: Counter[str] = Counter()
        offer(
            scheduler,
            {
                Handler.LACKS_FILES: self.lacks,
                Handler.TAKE_FILES: self.take,
                Handler.FILES: self.part,
            },
        )

    def expect(self, digest: str) -> None:
        """Make requests for an archive wait for it, if it has not arrived yet."""
        self._drop_unfinished()
        self._archives.setdefault(digest, _Archive())

    def lacks(self, digest: str) -> bool:
        archive = self._archives.get(digest)
        return archive is None or not archive.complete.is_set()

    def take(self, digest: str, part: int, parts: int, data: bytes) -> None:
        archive = self._archives.setdefault(digest, _Archive())
        archive.parts[part], archive.heard_at = data, time.monotonic()
        if len(archive.parts) == parts and not archive.complete.is_set():
            logger.debug("archive %s has arrived: %d bytes", digest, archive.size)
            self._use(digest)
            self._drop_old()
            archive.complete.set()

    def _use(self, digest: str) -> None:
        self._archives[digest] = self._archives.pop(digest)

    def _drop_unfinished(self) -> None:
        by = time.monotonic() - ARRIVAL_TIMEOUT_S
        for digest, archive in list(self._archives.items()):
            if not archive.complete.is_set() and archive.heard_at < by:
                del self._archives[digest]

    def _drop_old(self) -> None:
        kept = 0
        for digest, archive in reversed(list(self._archives.items())):
            kept += archive.size
            if kept > MOST_KEPT and kept > archive.size and archive.complete.is_set():
                del self._archives[digest]
                self.sent.pop(digest, None)

    async def part(self, digest: str, part: int) -> tuple[int, bytes] | None:
        """Return the number of parts and one part, or None if the archive does not arrive."""
        archive = await self._arrived(digest)
        if archive is None or part not in archive.parts:
            return None
        if part == len(archive.parts) - 1:
            self.sent[digest] += 1
        return len(archive.parts), archive.parts[part]

    async def whole(self, digest: str) -> bytes | None:
        """Return an archive, or None if it does not arrive."""
        archive = await self._arrived(digest)
        if archive is None:
            return None
        return b"".join(archive.parts[number] for number in range(len(archive.parts)))

    async def _arrived(self, digest: str) -> _Archive | None:
        archive = self._archives.get(digest)
        if archive is None:
            return None
        try:
            await asyncio.wait_for(archive.complete.wait(), ARRIVAL_TIMEOUT_S)
        except TimeoutError:
            logger.warning("archive %s has not arrived in %g s", digest, ARRIVAL_TIMEOUT_S)
            return None
        if digest in self._archives:
            self._use(digest)
        return archive
