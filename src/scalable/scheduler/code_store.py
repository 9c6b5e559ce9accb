"""The versions of the workflows' modules that clients have sent, for the workers to fetch."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from distributed import Scheduler

from scalable.protocol.code import CodeTable
from scalable.protocol.dask_seams.scheduler import offer_on_streams, send_to_client
from scalable.protocol.handlers import Handler, offer
from scalable.protocol.importing import TABLES_KEPT, here, sources_of
from scalable.protocol.operations import CODE

logger = logging.getLogger("scalable.scheduler")


class CodeStore:
    """Tables of modules by code id, and sources by digest.

    Parameters
    ----------
    scheduler
        Scheduler whose clients and workers use the store.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._tables: dict[str, CodeTable] = {}
        self._sources: dict[str, bytes] = {}
        self._latest: dict[str, str] = {}
        offer_on_streams(scheduler, CODE, self.take)
        offer(scheduler, {Handler.CODE_TABLE: self.table, Handler.SOURCES: self.sources})

    def take(self, table: Mapping[str, Any], sources: Mapping[str, bytes], client: str) -> None:
        """Store what a client has loaded, and tell it which modules were known differently."""
        taken = CodeTable.from_message(table)
        self._tables.pop(taken.id, None)
        self._tables[taken.id] = taken
        self._sources.update(sources)
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
        named = {m.digest for table in self._tables.values() for m in table.modules.values()}
        self._sources = {d: source for d, source in self._sources.items() if d in named}

    def table(self, code: str) -> dict[str, Any] | None:
        """Return the modules of a code id, as a message; None for an unknown id."""
        table = self._tables.pop(code, None)
        if table is None:
            return None
        self._tables[code] = table  # it is in use, so others are dropped before it
        return table.to_message()

    def sources(self, digests: Iterable[str]) -> dict[str, bytes]:
        """Return digest -> source, for the digests that are known."""
        return sources_of(digests, self._sources)

    def use(self, code: str) -> None:
        """Load modules in the versions of a code id from now on, if this process may."""
        importer = here()
        if importer is not None:
            importer.use(code)
