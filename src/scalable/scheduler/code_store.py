"""Versions of the workflows' modules that clients have sent, for workers to fetch."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from distributed import Scheduler

from scalable.dask_compat.scheduler import offer_on_streams, send_to_client
from scalable.protocol.code import ArchiveError, CarriedFiles, CodeTable
from scalable.protocol.handlers import Handler, offer
from scalable.protocol.importing import TABLES_KEPT, here, sources_of
from scalable.protocol.operations import CODE

logger = logging.getLogger("scalable.scheduler")


class CodeStore:
    """Stores each client's module versions: tables by code id, and sources by digest."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._tables: dict[str, CodeTable] = {}
        self._sources: dict[str, bytes] = {}
        self._latest: dict[str, str] = {}
        self._files_of: dict[str, CarriedFiles] = {}
        self._preparing = asyncio.Lock()
        self.carries = False
        self.files = FileStore(scheduler)
        offer_on_streams(scheduler, CODE, self.take)
        offer(scheduler, {Handler.CODE_TABLE: self.table, Handler.SOURCES: self.sources})

    def take(self, table: Mapping[str, Any], sources: Mapping[str, bytes], client: str) -> None:
        """Store a client's module versions, and report the changed ones to the client."""
        taken = CodeTable.from_message(table)
        self._tables.pop(taken.id, None)
        self._tables[taken.id] = taken
        self._sources.update(sources)
        if taken.files is not None:
            self._files_of[taken.process] = taken.files
            self.files.expect(taken.files.digest)
        changed = [
            name
            for name, module in taken.modules.items()
            if self._latest.get(name, module.digest) != module.digest
        ]
        self._latest |= {name: module.digest for name, module in taken.modules.items()}
        logger.debug("client %s has code %s; changed: %s", client, taken.id, changed)
        if changed:
            send_to_client(self._scheduler, client, {"op": CODE, "changed": changed})
        self._drop_old()
        importer = here()
        if importer is not None:
            importer.add(taken, sources)

    def _drop_old(self) -> None:
        if len(self._tables) <= TABLES_KEPT:
            return
        del self._tables[next(iter(self._tables))]
        processes = {table.process for table in self._tables.values()}
        self._files_of = {p: files for p, files in self._files_of.items() if p in processes}
        named = {m.digest for table in self._tables.values() for m in table.modules.values()}
        self._sources = {d: source for d, source in self._sources.items() if d in named}

    def table(self, code: str) -> dict[str, Any] | None:
        """Return the module table of a code id as a message, or None for an unknown id."""
        table = self._tables.pop(code, None)
        if table is None:
            return None
        self._tables[code] = table  # it is in use, so others are dropped before it
        if table.files is None:
            # Tasks submitted before the first worker without their client's file system.
            table = replace(table, files=self._files_of.get(table.process))
        return table.to_message()

    def sources(self, digests: Iterable[str]) -> dict[str, bytes]:
        return sources_of(digests, self._sources)

    def use(self, code: str) -> None:
        """Switch imports to the module versions of a code id, if this process has an importer."""
        importer = here()
        if importer is not None:
            importer.use(code)

    # Files --------------------------------------------------------------------------------------

    def carry(self) -> None:
        if self.carries:
            return
        self.carries = True
        logger.debug("requesting the files of workflows from the connected clients")
        for client in self._scheduler.clients:
            send_to_client(self._scheduler, client, {"op": CODE, "carry": True})

    async def prepare(self, code: str) -> None:
        """Unpack the files of a code id, if this process imports modules from them."""
        if self._preparing.locked() or self._lacking(code) is not None:
            async with self._preparing:
                await self._unpack(code)

    def _lacking(self, code: str) -> CarriedFiles | None:
        importer, table = here(), self._tables.get(code)
        files = None if table is None else table.files
        if importer is None or files is None or files in importer.trees:
            return None
        return None if all(Path(path).is_dir() for path, _ in files.roots) else files

    async def _unpack(self, code: str) -> None:
        importer, files = here(), self._lacking(code)
        if importer is None or files is None:
            return
        data = await self.files.whole(files.digest)
        if data is None:
            logger.warning("the files of code %s did not arrive", code)
            return
        try:
            await asyncio.to_thread(importer.trees.add, files, data)
        except (ArchiveError, OSError) as error:
            logger.warning("the files of code %s cannot be used: %s", code, error)
        importer.trees.drop_old(())


# File store ---------------------------------------------------------------------------------------

#: Bytes of archives that are kept. Beyond that, the least recently used are dropped.
MOST_KEPT = 1 << 28
#: Seconds to wait for an archive that a client has announced.
ARRIVAL_TIMEOUT_S = 120.0


@dataclass
class _Archive:
    """Archive that may not have arrived completely."""

    parts: dict[int, bytes] = field(default_factory=dict)
    #: Monotonic time of the announcement, or of the arrival of the latest part.
    heard_at: float = field(default_factory=time.monotonic)
    #: Set once all parts have arrived.
    complete: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def size(self) -> int:
        return sum(map(len, self.parts.values()))


class FileStore:
    """Stores archives by digest. ``sent`` counts how often a worker got a whole archive."""

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
        """Make requests for an archive wait until it has arrived."""
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
        """Return an archive's number of parts and one part, or None if it does not arrive."""
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
            async with asyncio.timeout(ARRIVAL_TIMEOUT_S):
                await archive.complete.wait()
        except TimeoutError:
            logger.warning("archive %s has not arrived in %g s", digest, ARRIVAL_TIMEOUT_S)
            return None
        if digest in self._archives:
            self._use(digest)
        return archive
