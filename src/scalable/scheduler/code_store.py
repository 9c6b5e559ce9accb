"""Versions of the workflows' modules that clients have sent, for workers to fetch."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import replace

from distributed import Scheduler
from distributed.protocol.serialize import ToPickle

from scalable.dask_compat.scheduler import send_to_client
from scalable.protocol.code import ArchiveError, CarriedFiles, CodeTable
from scalable.protocol.handlers import Handler, offer
from scalable.protocol.importing import CodeVersions, Importer, here
from scalable.protocol.operations import CODE

logger = logging.getLogger("scalable.scheduler")


class CodeStore:
    """Stores each client's module versions, and archives of files."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        importer = here()
        self._versions = CodeVersions() if importer is None else importer.versions
        #: Digest of each module in the version that was sent last.
        self._latest: dict[str, str] = {}
        self._preparing = asyncio.Lock()
        #: True if some workers do not share the clients' file system.
        self.carries = False
        self.files = FileStore(scheduler)
        scheduler.stream_handlers[CODE] = self.take
        offer(scheduler, {Handler.CODE_TABLE: self.table, Handler.SOURCES: self.sources})

    def take(self, table: CodeTable, sources: Mapping[str, bytes], client: str) -> None:
        """Store a client's module versions, and report the changed ones to the client."""
        self._versions.add(table, sources)
        if table.files is not None:
            self.files.expect(table.files.digest)
        digests = {name: module.digest for name, module in table.modules.items()}
        changed = [n for n, digest in digests.items() if self._latest.get(n, digest) != digest]
        self._latest |= digests
        logger.debug("client %s has code %s; changed: %s", client, table.id, changed)
        if changed:
            send_to_client(self._scheduler, client, {"op": CODE, "changed": changed})

    def table(self, code: str) -> ToPickle[CodeTable] | None:
        """Return the module table of a code id, or None for an unknown id."""
        table = self._versions.find(code)
        if table is None:
            return None
        if table.files is None:
            # Tasks submitted before the first worker without their client's file system.
            tables = reversed(self._versions.tables.values())
            files = (t.files for t in tables if t.files and t.process == table.process)
            table = replace(table, files=next(files, None))
        return ToPickle(table)

    def sources(self, digests: Iterable[str]) -> dict[str, bytes]:
        known = self._versions.sources
        return {digest: known[digest] for digest in digests if digest in known}

    # Files --------------------------------------------------------------------------------------

    def carry(self) -> None:
        if self.carries:
            return
        self.carries = True
        logger.debug("requesting the files of workflows from the connected clients")
        for client in self._scheduler.clients:
            send_to_client(self._scheduler, client, {"op": CODE, "carry": True})

    async def prepare(self, code: str) -> None:
        """Use the module versions of a code id in this process, unless it is the user's own."""
        if (importer := here()) is None:
            return
        async with self._preparing:  # the order of graphs is kept
            table = self._versions.tables.get(code)
            files = None if table is None else importer.missing_files(table)
            if files is not None:
                await self._unpack(importer, files)
        importer.use(code)

    async def _unpack(self, importer: Importer, files: CarriedFiles) -> None:
        data = await self.files.whole(files.digest)
        if data is None:
            return
        try:
            await asyncio.to_thread(importer.trees.add, files, data)
        except (ArchiveError, OSError) as error:
            logger.warning("archive %s cannot be used: %s", files.digest, error)
        importer.drop_old_files()


# File store ---------------------------------------------------------------------------------------

#: Bytes of archives that are kept. Beyond that, the least recently used are dropped.
MOST_KEPT = 1 << 28
#: Seconds to wait for an archive that a client has announced.
ARRIVAL_TIMEOUT_S = 120.0


class _Archive:
    """Archive that may not have arrived completely."""

    def __init__(self) -> None:
        self.parts: dict[int, bytes] = {}
        #: Set once all parts have arrived.
        self.complete = asyncio.Event()

    @property
    def size(self) -> int:
        return sum(map(len, self.parts.values()))


class FileStore:
    """Stores archives by digest, the last used one last."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._archives: OrderedDict[str, _Archive] = OrderedDict()
        offer(scheduler, {Handler.TAKE_FILES: self.take, Handler.FILES: self.part})

    def expect(self, digest: str) -> None:
        """Make requests for an archive wait until it has arrived."""
        self._archives.setdefault(digest, _Archive())

    def take(self, digest: str, part: int, parts: int, data: bytes) -> bool:
        """Store a part of an archive, and return whether no other part is needed."""
        archive = self._archives.setdefault(digest, _Archive())
        self._archives.move_to_end(digest)
        if not archive.complete.is_set():
            archive.parts[part] = data
            self._drop_old()
            if len(archive.parts) == parts:
                logger.debug("archive %s has arrived: %d bytes", digest, archive.size)
                archive.complete.set()
        return archive.complete.is_set()

    def _drop_old(self) -> None:
        kept = 0
        for digest, archive in reversed(list(self._archives.items())):
            kept += archive.size
            if archive.parts and MOST_KEPT < kept > archive.size:
                del self._archives[digest]

    async def part(self, digest: str, part: int) -> tuple[int, bytes] | None:
        """Return an archive's number of parts and one part, or None if it does not arrive."""
        parts = await self._arrived(digest)
        return (len(parts), parts[part]) if part in parts else None

    async def whole(self, digest: str) -> bytes | None:
        """Return an archive, or None if it does not arrive."""
        parts = await self._arrived(digest)
        return b"".join(parts[number] for number in sorted(parts)) if parts else None

    async def _arrived(self, digest: str) -> Mapping[int, bytes]:
        """Wait for an announced archive, and return its parts, or an empty mapping."""
        archive = self._archives.get(digest)
        if archive is None:
            return {}
        try:
            async with asyncio.timeout(ARRIVAL_TIMEOUT_S):
                await archive.complete.wait()
        except TimeoutError:
            logger.warning("archive %s has not arrived in %g s", digest, ARRIVAL_TIMEOUT_S)
            return {}
        if digest in self._archives:
            self._archives.move_to_end(digest)
        return archive.parts
