"""Code of a worker's tasks, which is fetched before a task starts."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from distributed import Worker

from scalable.errors import ScalableError
from scalable.protocol.archive import ArchiveError, CarriedFiles
from scalable.protocol.code import CodeTable
from scalable.protocol.dask_seams.nodes import CarriedNode
from scalable.protocol.handlers import SchedulerCalls
from scalable.protocol.importing import Importer, here

logger = logging.getLogger("scalable.worker")

#: Seconds to wait before each repeated attempt to fetch code.
PAUSES_S = (0.2, 1.0, 5.0)


class CodeOfCalls:
    """Fetcher of the versions of modules, and the archives of files, that tasks need."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        #: Running fetch by code id: each is fetched once, however many tasks wait for it.
        self._fetches: dict[str, asyncio.Task[None]] = {}

    async def know(self, task: Any) -> None:
        """Fetch the code that a task needs, unless it is here. Without it, the task will fail."""
        importer, node = here(), getattr(task, "run_spec", None)
        if importer is None or not isinstance(node, CarriedNode) or importer.knows(node.code):
            return
        fetch = self._fetches.get(node.code)
        if fetch is None:
            fetch = asyncio.create_task(self._fetch(importer, node.code))
            self._fetches[node.code] = fetch
            fetch.add_done_callback(lambda _: self._fetches.pop(node.code, None))
        await asyncio.shield(fetch)

    async def _fetch(self, importer: Importer, code: str) -> None:
        for pause_s in (*PAUSES_S, None):
            try:
                await self._fetch_once(importer, code)
            except (ArchiveError, ScalableError) as error:
                logger.warning("code %s cannot be used: %s", code, error)
            except OSError as error:
                logger.warning("code %s cannot be fetched: %s", code, error)
                if pause_s is not None:
                    await asyncio.sleep(pause_s)
                    continue
            return

    async def _fetch_once(self, importer: Importer, code: str) -> None:
        calls = SchedulerCalls(self._worker.scheduler)
        message = await calls.code_table(code)
        if message is None:
            logger.warning("code %s is not known to the scheduler any more", code)
            return
        table = CodeTable.from_message(message)
        files = table.files
        if files is not None and importer.lacks_files(table):
            data = await self._archive(calls, files)
            if data is None:
                return
            await asyncio.to_thread(importer.trees.add, files, data)
            importer.trees.drop_old(importer.digests_of(self._running()))
        missing = await asyncio.to_thread(importer.missing_sources, table)
        sources = await calls.sources(missing) if missing else {}
        logger.debug("code %s: %d sources are not in files here", code, len(missing))
        importer.add(table, sources, code)

    async def _archive(self, calls: SchedulerCalls, files: CarriedFiles) -> bytes | None:
        parts: list[bytes] = []
        while True:
            answer = await calls.files(files.digest, len(parts))
            if answer is None:
                logger.warning("archive %s is not known to the scheduler", files.digest)
                return None
            parts.append(answer[1])
            if len(parts) == answer[0]:
                return b"".join(parts)

    def _running(self) -> set[str]:
        """Return the code ids of the tasks that run."""
        state = self._worker.state
        specs = (task.run_spec for task in state.executing | state.long_running)
        return {spec.code for spec in specs if isinstance(spec, CarriedNode)}
