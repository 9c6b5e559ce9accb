"""Large results that stay on the workers, because other tasks take them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from scalable.client.calls.futures import CallFuture
from scalable.client.scheduler_line import SchedulerLine
from scalable.errors import ClusterError
from scalable.protocol.messages import Reference

logger = logging.getLogger("scalable.client")

#: Number of attempts to get a result whose workers are lost.
ATTEMPTS = 3

Call = tuple[Callable[..., Any], tuple[Any, ...], Mapping[str, Any]]


class KeptResults:
    """Results of one executor's tasks that stay on the workers."""

    def __init__(self, line: SchedulerLine, run: Callable[[Call], CallFuture]) -> None:
        self._line, self._run = line, run
        self._again: dict[Reference, asyncio.Task[None]] = {}

    def of(self, bundle: Any, position: int, call: Call) -> Reference:
        """Return a reference into a bundle's Dask future. A lost result runs ``call`` again."""
        return Reference(bundle, partial(self._bring_again, call), position=position)

    def is_near(self, line: SchedulerLine) -> bool:
        """Return whether the tasks of another executor can take the results."""
        return line is self._line

    def fetch(self, reference: Reference) -> Any:
        """Return the value of a result. Its task runs again if the result is lost.

        Raises ClusterError in the event loop, or if the client is closed.
        """
        if self._line.in_event_loop:
            raise ClusterError(
                "the result is on a worker, and a callback cannot wait for it",
                hint="call result() in another thread",
            )
        if self._line.closed:
            raise ClusterError(
                "the result was on a worker when the client was closed",
                hint="call result() before the client is closed",
            )
        return self._line.wait_for(self._fetch, reference)

    async def _fetch(self, reference: Reference) -> Any:
        for attempt in range(ATTEMPTS):
            if reference.future.status in ("cancelled", "lost"):
                await reference.bring_again(reference)
            try:
                found = await self._line.fetch(reference.future)
            except Exception:
                if attempt == ATTEMPTS - 1 or reference.future.status == "finished":
                    raise
                continue
            if reference.position is None:
                return found
            return await asyncio.to_thread(found[reference.position].load)
        raise ClusterError(f"the result was lost with its worker, {ATTEMPTS} times")

    async def _bring_again(self, call: Call, reference: Reference) -> None:
        """Run the task of a lost result again, once for all callers."""
        if reference not in self._again:
            self._again[reference] = asyncio.ensure_future(self._run_again(call, reference))
            self._again[reference].add_done_callback(lambda _: self._again.pop(reference, None))
        await asyncio.shield(self._again[reference])

    async def _run_again(self, call: Call, reference: Reference) -> None:
        logger.debug("the result %s was lost: its call runs again", reference.future.key)
        ended, future = asyncio.Event(), self._run(call)
        future.add_done_callback(lambda _: self._line.call_soon(ended.set))
        await ended.wait()
        if (error := future.exception(0)) is not None:
            raise error
        if future.kept is not None:
            reference.future, reference.position = future.kept.future, future.kept.position
        else:  # it is small this time
            reference.value, reference.position = future.result(0), None
            await self._line.upload_again(reference)
