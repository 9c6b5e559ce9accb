"""`CheckpointPlace`: where the calls of a cluster keep their checkpoints."""

from __future__ import annotations

import asyncio
import secrets
from typing import Any

from scalable.caching.checkpoints import REMEMBERED, Checkpoints, checkpoint_directory
from scalable.errors import ScalableError
from scalable.protocol.handlers import Handler, offer


class CheckpointPlace:
    """Makes the directory of one cluster's checkpoints when a call wants one, and removes it.

    It is made here, and not by the workers: one that sees another file system finds it missing.

    Parameters
    ----------
    scheduler
        Scheduler of the cluster.
    """

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self._group = secrets.token_hex(16)
        self._made: Checkpoints | None = None
        offer(scheduler, {Handler.CHECKPOINTS: self.prepared})

    async def prepared(self) -> dict[str, str] | None:
        """Return the directory of results, and the name of this cluster's group in it.

        None if there are workers that do not share this file system; ``fault`` and ``hint`` if the
        directory cannot be made.
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
        """Remove the checkpoints of calls whose results are not remembered: the cluster ends."""
        if self._made is not None:
            await asyncio.to_thread(self._made.remove, self._group)
