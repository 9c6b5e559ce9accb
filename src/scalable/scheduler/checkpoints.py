"""Location of the checkpoints of a cluster's tasks."""

from __future__ import annotations

import asyncio
import secrets
from typing import Any

from scalable.cache.checkpoints import REMEMBERED, Checkpoints, checkpoint_directory
from scalable.errors import ScalableError
from scalable.protocol.handlers import Handler, offer


class CheckpointPlace:
    """Creates a cluster's checkpoint directory when a task first needs one, and removes it.
    Workers do not create it, so that one with another file system finds it missing.
    """

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self._group = secrets.token_hex(16)
        self._made: Checkpoints | None = None
        offer(scheduler, {Handler.CHECKPOINTS: self.prepared})

    async def prepared(self) -> dict[str, str] | None:
        """Return ``directory`` and ``group``, or ``fault`` and ``hint`` if it cannot be created.
        None if some workers do not share this file system.
        """
        if self._scheduler.code.carries:
            return None
        try:
            directory = checkpoint_directory((self._scheduler.remembering or {}).get("url"))
            self._made = Checkpoints(directory)
            for group in (REMEMBERED, self._group):
                await asyncio.to_thread(self._made.prepare, group)
        except ScalableError as error:
            return {"fault": error.message, "hint": error.hint or ""}
        return {"directory": str(directory), "group": self._group}

    async def remove(self) -> None:
        """Remove the checkpoints of tasks without cached results, because the cluster stops."""
        if self._made is not None:
            await asyncio.to_thread(self._made.remove, self._group)
