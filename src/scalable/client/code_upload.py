"""Upload of this process's code to a cluster, whose image may have other versions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from distributed import Client
from distributed.protocol.serialize import ToPickle
from distributed.utils import in_async_call

from scalable.client.own_code import Snapshot, names_of, note_code, own_code, own_files, warn_once
from scalable.dask_compat.client import facts_of, send_to_scheduler
from scalable.errors import ClusterError
from scalable.protocol.code import STRICT, CodeTable, ImageVersions, parts_of
from scalable.protocol.handlers import Handler, request
from scalable.protocol.importing import here
from scalable.protocol.operations import CARRIES, CODE, VERSIONS, WIRE, other_wire

logger = logging.getLogger("scalable.client")


class CodeUpload:
    """Sender of this process's loaded modules, and of its files, to a client's scheduler.
    Files are sent only if some workers do not share this machine's file system.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        #: Code id that was last sent to the scheduler.
        self._sent_id = ""
        #: True if the scheduler was started by scalable, which is known once it is connected.
        self._is_wanted = False
        #: True if files are uploaded.
        self.sends_files = False
        note_code()

    def scheduler_known(self) -> None:
        """Compare the versions of messages and packages with those of this process."""
        facts = facts_of(self._client)
        scheduler = f"the scheduler {facts.get('address')}"
        if (error := other_wire(facts, scheduler, "this client")) is not None:
            raise error
        self._is_wanted = WIRE in facts
        compare_versions(facts)

    def receive(self, changed: list[str] | None = None, carry: bool = False, **_: Any) -> None:
        """Handle a message about code: upload files from now on, or warn about changed modules."""
        if carry and here() is None:
            self.sends_files = True
            assert self._client.loop is not None
            self._client.loop.add_callback(self._send_files)
        if changed:
            logger.warning(
                "the cluster had loaded another version of %s; for tasks of this process, "
                "workers load the version of this process",
                names_of(changed),
            )

    async def start(self) -> None:
        """Upload the files of this process's workflow before the first task, if necessary."""
        self.sends_files = self.sends_files or bool(facts_of(self._client).get(CARRIES))
        if self.sends_files and here() is None:
            await self._send_files()

    async def _send_files(self) -> None:
        """Upload the files of this process's workflow as they are now."""
        own_files.read_again()
        table, snapshot = await asyncio.to_thread(own_files.carried_with, own_code.table())
        self._send(table, snapshot)
        if snapshot is not None:
            await self._send_archive(snapshot)

    def current_id(self) -> str:
        """Send this process's loaded code to the scheduler, and return the code's id.
        The id is empty if the scheduler was not started by scalable.
        """
        client = self._client
        if not self._is_wanted:
            return ""
        importer = here()
        if importer is not None:  # a task submits tasks: they need what it has
            return importer.versions.current
        table, snapshot = own_code.table(), None
        if self.sends_files:
            table, snapshot = own_files.carried_with(table)
        if table.id == self._sent_id:
            return table.id
        self._send(table, snapshot)
        if snapshot is not None:
            assert client.loop is not None
            if client.asynchronous or in_async_call(client.loop):
                # The scheduler waits for it.
                client.loop.add_callback(self._send_archive, snapshot)
            else:
                client.sync(self._send_archive, snapshot)
        return table.id

    def _send(self, table: CodeTable, snapshot: Snapshot | None) -> None:
        """Send the table of loaded modules to the scheduler."""
        self._sent_id = table.id
        carried = () if snapshot is None else snapshot.digests()
        sources = {d: source for d, source in own_code.sources().items() if d not in carried}
        message = {"op": CODE, "table": ToPickle(table), "sources": sources}
        send_to_scheduler(self._client, message)

    async def _send_archive(self, snapshot: Snapshot) -> None:
        """Send the parts of the snapshot's archive that the scheduler does not have."""
        digest, parts = snapshot.about.digest, parts_of(snapshot.data)
        archive = {"digest": digest, "parts": len(parts)}
        for number, part in enumerate(parts):
            sent = {**archive, "part": number, "data": bytes(part)}
            if await request(self._client.scheduler, Handler.TAKE_FILES, **sent):
                logger.debug("the scheduler has archive %s after part %d", digest, number)
                return

    def read_again(self) -> list[str]:
        """Read modules and files again, send them, and return the names of those that differ."""
        changed = own_code.read_again()
        if self.sends_files:
            modules = {module.path for module in own_code.table().modules.values()}
            changed += own_files.read_again(except_for=modules)
        self.current_id()
        return changed


# Image versions -----------------------------------------------------------------------------------


def compare_versions(facts: Mapping[str, Any]) -> None:
    """Warn about version differences between this process and the scheduler's image.
    Raises ClusterError for another release of ``distributed``, unless the target allows it.
    """
    message = facts.get(VERSIONS)
    if not message:
        return
    there = ImageVersions(*message)
    differing = there.differences()
    if STRICT in differing and not there.allows_mismatch:
        image, here = differing[STRICT]
        raise ClusterError(
            f"image {there.image} has {STRICT} {image}, and this process has {STRICT} {here}: "
            "other releases encode messages differently",
            hint=f"use an image with {STRICT} {here} (docs/images.md shows how to make one), "
            f"install {STRICT} {image} here, or set allow_version_mismatch: true in the target",
        )
    if not differing:
        return
    words = ", ".join(f"{name} {image} (here {here})" for name, (image, here) in differing.items())
    warn_once(
        f"image {there.image} has other versions: {words}; tasks and results may not be readable"
    )
