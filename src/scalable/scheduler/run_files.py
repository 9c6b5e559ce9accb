"""Files of a run, for readers without access to the scheduler's disk."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from distributed import Scheduler

from scalable.protocol.handlers import Handler, offer

logger = logging.getLogger("scalable.scheduler")

#: Largest number of bytes in one answer.
ANSWER_BYTES = 1 << 22
#: Suffix of files to which rows are appended. Other files are replaced as a whole.
STREAM = ".jsonl"


class RunFiles:
    """Sends what was added to a run's files. ``flush`` writes the buffered rows."""

    def __init__(self, scheduler: Scheduler, directory: Path, flush: Callable[[], object]) -> None:
        self._directory = directory
        self._flush = flush
        offer(scheduler, {Handler.RUN_FILES: self.read})

    async def read(self, known: Mapping[str, int]) -> dict[str, Any]:
        """Return ``run``, the directory's name, and ``files``, what a reader lacks of each.
        ``known`` maps file names to the sizes that the reader has. Streams are sent from there on,
        at most 4 MiB at once; other files as a whole if their size differs.
        """
        self._flush()
        files = await asyncio.to_thread(_added, self._directory, known)
        return {"run": self._directory.name, "files": files}


def _added(directory: Path, known: Mapping[str, int]) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    left = ANSWER_BYTES
    for path in sorted(directory.iterdir()):
        if not path.is_file() or path.name.startswith("."):
            continue
        have, size = known.get(path.name, -1), path.stat().st_size
        if have == size:
            continue
        if path.suffix != STREAM:
            found[path.name] = path.read_bytes()
            continue
        with path.open("rb") as file:
            file.seek(max(0, have))
            data = file.read(left)
        left -= len(data)
        if data or have < 0:
            found[path.name] = data
    return found
