"""`CarryingClient`: a Dask client whose tasks run the code that its process has loaded."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from distributed.utils import in_async_call

from scalable.client.own_code import names_of, note_code, own_code
from scalable.client.own_files import Snapshot, own_files
from scalable.protocol.archive import parts_of
from scalable.protocol.dask_seams.client import (
    AnnotatingClient,
    add_stream_handlers,
    send_to_scheduler,
)
from scalable.protocol.handlers import SchedulerCalls
from scalable.protocol.importing import here
from scalable.protocol.operations import CARRIES, CODE, CODE_ANNOTATION

logger = logging.getLogger("scalable.client")


class CarryingClient(AnnotatingClient):
    """A client that reports its loaded modules to the scheduler, and uploads files.

    The scheduler reports whether files have to be uploaded, because some of its workers do not
    share the file system of this machine.

    Parameters
    ----------
    *args, **kwargs
        As in ``distributed.Client``.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        #: Code id that was last sent to the scheduler.
        self._told_code = ""
        self._carries = False
        note_code()
        super().__init__(*args, **kwargs)

    def _hear_of_code(
        self, changed: list[str] | None = None, carry: bool = False, **_: Any
    ) -> None:
        """Log that the cluster has other versions of modules, or upload files from now on."""
        if carry and here() is None:
            self._carries = True
            assert self.loop is not None
            self.loop.add_callback(self._carry_own)
        if changed:
            logger.warning(
                "the cluster had loaded another version of %s; workers load the version of this "
                "process for its calls",
                names_of(changed),
            )

    async def connected(self) -> None:
        """Upload the files of this process's workflow before the first task, if necessary."""
        await super().connected()
        add_stream_handlers(self, {CODE: self._hear_of_code})
        self._carries = self._carries or bool(self.scheduler_facts.get(CARRIES))
        if self._carries and here() is None:
            await self._carry_own()

    async def _carry_own(self) -> None:
        """Upload the files of this process's workflow as they are now."""
        own_files.read_again()
        table, snapshot = await asyncio.to_thread(own_files.carried_with, own_code.table())
        self._tell(table)
        if snapshot is not None:
            await self._carry(snapshot)

    def code(self) -> str:
        """Send the code that this process has loaded to the scheduler, and return its id.

        The id is empty if the scheduler was not started by scalable.
        """
        if not self.scheduler_facts.get(CODE):
            return ""
        importer = here()
        if importer is not None:  # a task submits tasks: they need what it has
            return importer.current
        table, snapshot = own_code.table(), None
        if self._carries:
            table, snapshot = own_files.carried_with(table)
        if self._tell(table) and snapshot is not None:
            assert self.loop is not None
            if self.asynchronous or in_async_call(self.loop):
                self.loop.add_callback(self._carry, snapshot)  # the scheduler waits for it
            else:
                self.sync(self._carry, snapshot)
        return table.id

    def _tell(self, table: Any) -> bool:
        """Send the table of loaded modules to the scheduler. Return False if it was sent before."""
        if table.id == self._told_code:
            return False
        self._told_code = table.id
        sources = own_code.sources()
        if table.files is not None:
            carried = own_files.digests()
            sources = {d: source for d, source in sources.items() if d not in carried}
        send_to_scheduler(self, {"op": CODE, "table": table.to_message(), "sources": sources})
        return True

    async def _carry(self, snapshot: Snapshot) -> None:
        """Send an archive to the scheduler, unless it has the archive."""
        calls, digest = SchedulerCalls(self.scheduler), snapshot.about.digest
        if not await calls.lacks_files(digest):
            logger.debug("archive %s is on the scheduler already", digest)
            return
        parts = parts_of(snapshot.data)
        for number, part in enumerate(parts):
            await calls.take_files(digest, number, len(parts), bytes(part))
        logger.debug("archive %s was sent in %d parts", digest, len(parts))

    def sync_code(self) -> list[str]:
        """Make workers run the workflow's files as they are now, including edited files.

        This process keeps what it has imported. Needed only after an edit without a reload:
        modules that are reloaded, or imported by a new process, reach the workers automatically.

        Returns
        -------
        list of str
            Names of the modules that differ from what was sent to the workers before, and names of
            other files that were uploaded and differ.
        """
        changed = own_code.read_again()
        if self._carries:
            modules = {module.path for module in own_code.table().modules.values()}
            changed += own_files.read_again(except_for=modules)
        self.code()
        return changed

    def annotations_of_graph(self) -> dict[str, Any]:
        """Return the annotation with the code id of this process."""
        code = self.code()
        return {CODE_ANNOTATION: code} if code else {}
