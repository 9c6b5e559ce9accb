"""Manager of a session's cluster as a separate program, next to the scheduler."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from scalable.errors import ProviderError
from scalable.protocol.handlers import SchedulerCalls
from scalable.remote.session_manager import (
    CONNECT_TIMEOUT_S,
    LEAVE_TIMEOUT_S,
    POLL_S,
    answer_of,
    scheduler_comm,
)
from scalable.spec import ProgramState

logger = logging.getLogger("scalable.remote")

#: Number of reports that the creator sends within ``abandoned_after``.
REPORTS = 5
#: Longest pause in seconds between two reports.
LONGEST_PERIOD_S = 10.0
#: Seconds between two checks of the program of a manager that has not attached yet.
STATE_POLL_S = 2.0


class ManagerProgram(Protocol):
    """The program of a manager in a remote backend."""

    async def start_manager(self) -> None:
        """Start the program, and raise ProviderError if the backend refuses."""

    async def manager_state(self) -> ProgramState:
        """Return the state of the program, with the reason."""


class PlacedManager:
    """Starts a manager in the backend, and reports to the scheduler that the creator is alive.

    The manager has to attach within ``start_s`` seconds. The cluster stops itself after
    ``abandoned_after_s`` seconds without a report.
    """

    def __init__(
        self, program: ManagerProgram, manager: str, start_s: float, abandoned_after_s: float
    ) -> None:
        self._program, self._manager, self._start_s = program, manager, start_s
        self._period_s = min(LONGEST_PERIOD_S, abandoned_after_s / REPORTS)
        self._comm: Any = None
        self._reporting: asyncio.Task[None] | None = None

    async def start(
        self, address: str, security: Any, check: Callable[[], Awaitable[object]]
    ) -> None:
        """Start the manager, and return when it is attached to the scheduler at ``address``.

        ``check`` raises an error if the scheduler has ended. Raises ClusterError if the scheduler
        does not answer in time, and ProviderError if the manager does not start or attach.
        """
        self._comm = scheduler_comm(address, security)
        calls = SchedulerCalls(self._comm)
        # The first report precedes the manager: from now on the manager's reports do not count.
        await answer_of(calls.creator_lives, check)
        self._reporting = asyncio.create_task(self._report(calls))
        await self._program.start_manager()
        await self._attached(calls, check)

    async def _attached(
        self, calls: SchedulerCalls, check: Callable[[], Awaitable[object]]
    ) -> None:
        deadline = time.monotonic() + self._start_s
        looked_at, told = time.monotonic(), ""
        while True:
            status = await answer_of(calls.status, check)
            if any(row["id"] == self._manager for row in status["managers"]):
                return
            if time.monotonic() - looked_at > STATE_POLL_S:
                looked_at = time.monotonic()
                seen = await self._program.manager_state()
                if seen.state in ("failed", "completed"):
                    raise ProviderError(f"the manager does not run: {seen.reason or seen.state}")
                if seen.reason and seen.reason != told:
                    told = seen.reason
                    logger.debug("the manager waits: %s", told)
            if time.monotonic() > deadline:
                raise ProviderError(
                    f"the manager has not attached to the scheduler within {self._start_s:g} s"
                    f"{told and f': {told}'}",
                    hint="raise start_timeout in the target if it only needs more time, or leave "
                    "out manager: there",
                )
            await asyncio.sleep(POLL_S)

    async def _report(self, calls: SchedulerCalls) -> None:
        while True:
            try:
                await asyncio.wait_for(calls.creator_lives(), CONNECT_TIMEOUT_S)
            except (OSError, TimeoutError) as error:
                logger.debug("the scheduler was not told that its creator lives: %s", error)
            await asyncio.sleep(self._period_s)

    async def close(self) -> None:
        """Report the end of the cluster to the scheduler. Its manager stops the workers."""
        if self._reporting is not None:
            self._reporting.cancel()
            await asyncio.gather(self._reporting, return_exceptions=True)
        if self._comm is None:
            return
        try:
            end = SchedulerCalls(self._comm).end("its creator has closed it")
            await asyncio.wait_for(end, LEAVE_TIMEOUT_S)
        except (OSError, TimeoutError) as error:
            logger.debug("the scheduler was not told of the end: %s", error)
        await self._comm.close_rpc()
