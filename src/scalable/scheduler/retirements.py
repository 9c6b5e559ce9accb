"""Retirement of workers, together for all workers that are ready for it at the same moment."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from itertools import islice
from typing import Any

from distributed import Scheduler

#: Seconds for which workers are collected. Drains check their workers every 0.1 s.
COLLECT_S = 0.05
#: Number of workers that Dask retires at once. For each of their results it compares all other
#: workers (2 ms with 5,000) in one turn of the event loop.
AT_ONCE = 20
#: Seconds after which the next workers retire even if results of earlier ones still move.
LONGEST_S = 1.0


class Retirements:
    """Makes Dask move the results of workers away and remove the workers, many at a time.
    ``retire_workers`` examines the memory of all workers each time. One call per worker would take
    a thousand times as long for a thousand workers.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        #: Answers by address, of the workers that are collected, and of those that retire.
        self._asked: dict[str, asyncio.Future[bool]] = {}
        self._retiring: dict[str, asyncio.Future[bool]] = {}
        self._batches = set[asyncio.Task[None]]()

    async def retire(self, address: str) -> bool:
        """Retire a worker, and return False if its results could not be moved."""
        if not self._asked:
            batch = asyncio.create_task(self._retire_soon(), name="retire workers")
            self._batches.add(batch)
            batch.add_done_callback(self._batches.discard)
        if address not in self._asked:
            self._asked[address] = asyncio.get_running_loop().create_future()
        return await asyncio.shield(self._asked[address])

    def left(self, address: str) -> None:
        """Answer for a worker that was removed while others of its batch still retire."""
        answer = self._retiring.pop(address, None)
        if answer is not None and not answer.done():
            answer.set_result(True)

    def close(self) -> None:
        for batch in self._batches:
            batch.cancel()

    async def _retire_soon(self) -> None:
        await asyncio.sleep(COLLECT_S)
        asked, self._asked = self._asked, {}
        self._retiring |= asked
        waiting = iter(asked)
        while part := {address: asked[address] for address in islice(waiting, AT_ONCE)}:
            retiring = asyncio.create_task(self._retire(part), name="retire some workers")
            self._batches.add(retiring)
            retiring.add_done_callback(self._batches.discard)
            await asyncio.wait([retiring], timeout=LONGEST_S)

    async def _retire(self, asked: Mapping[str, asyncio.Future[bool]]) -> None:
        failed: Exception | None = None
        retired: Mapping[str, Any] = {}
        try:
            retired = await self._scheduler.retire_workers(workers=list(asked))
        except OSError as error:
            failed = error
        for address, answer in asked.items():
            self._retiring.pop(address, None)
            if answer.done():
                continue
            if failed is None:
                answer.set_result(address in retired)
            else:
                answer.set_exception(failed)
