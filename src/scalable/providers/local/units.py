"""A worker on this machine: its process, and the removal of its container and files."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from scalable.containers import run_bounded
from scalable.errors import ProviderError
from scalable.files import read_tail
from scalable.manager.launcher import Observation, UnitState
from scalable.providers.local.processes import KILL_S, TERMINATE_S, WorkerProcess
from scalable.providers.local.render import end_of, is_transient
from scalable.worker.parent_watch import remove_scratch

logger = logging.getLogger("scalable.providers")

STOPPED_GRACE_S = 10.0
REMOVAL_S = 15.0


@dataclass(frozen=True)
class Belongings:
    """Files and container of a worker, which are removed after its process has exited."""

    #: Directories that only this worker uses.
    scratch: tuple[Path, ...]
    #: File with its output.
    log: Path
    #: Bytes, 0 for no limit. Shown if the worker ran out of memory.
    memory_limit: int
    #: Command that removes its container.
    removal: list[str] | None = None


@dataclass(frozen=True)
class End:
    """The reason of a worker's exit, for users, and the last 8 KiB of its output."""

    reason: str
    last_output: str


class LocalUnit:
    """A worker on this machine, from its start until its container and files are removed.
    A thread does the blocking work, so :meth:`observe` never blocks. ``start`` may block, and
    raises OSError or ValueError. ``on_end`` runs in the thread. ``started`` fails with a
    ProviderError if the process cannot start. ``end`` is None until the removal.
    """

    def __init__(
        self,
        name: str,
        start: Callable[[], WorkerProcess],
        belongings: Belongings,
        on_end: Callable[[], None],
    ) -> None:
        self.name = name
        self.started: Future[None] = Future()
        self.end: End | None = None
        self._start = start
        self._belongings = belongings
        self._on_end = on_end
        self._process: WorkerProcess | None = None
        self._ended: Future[None] = Future()
        self._told_to_stop = False
        self._stopped_since: float | None = None
        for future in (self.started, self._ended):
            future.set_running_or_notify_cancel()  # a cancelled waiter must not cancel the future

    def begin(self) -> None:
        """Start the worker in a thread. :attr:`started` is done when its process runs."""
        threading.Thread(target=self._run, name=f"scalable worker {self.name}", daemon=True).start()

    def _run(self) -> None:
        try:
            process = self._process = self._start()
        except (OSError, ValueError) as error:
            self._remove_scratch()
            reason = f"worker {self.name} cannot be started: {error}"
            self.end = End(reason, "")
            self._ended.set_result(None)
            refused = ProviderError(reason, transient=is_transient(error))
            refused.__cause__ = error
            self.started.set_exception(refused)
            return
        if self._told_to_stop:
            process.terminate()
        self.started.set_result(None)
        process.wait()
        try:
            self._clear_away(process)
        except ProviderError as error:
            self._ended.set_exception(error)
        else:
            self._ended.set_result(None)
        self._on_end()

    def _clear_away(self, process: WorkerProcess) -> None:
        process.end()
        if self._belongings.removal is not None:
            run_bounded(self._belongings.removal, REMOVAL_S)
        code = process.returncode
        reason = "it ended" if code is None else end_of(code, self._belongings.memory_limit)
        logger.debug("worker %s (process %d) has ended: %s", self.name, process.pid, reason)
        last_output = read_tail(self._belongings.log)
        self._remove_scratch()
        self.end = End(reason, last_output)

    def _remove_scratch(self) -> None:
        for scratch in self._belongings.scratch:
            remove_scratch(str(scratch))

    def observe(self) -> Observation:
        """Never blocks. A process that a signal suspended for 10 s counts as ended."""
        if self.end is not None:
            return Observation(UnitState.ENDED, self.end.reason)
        if self._process is None:
            return Observation(UnitState.PENDING, "its process starts")
        now = time.monotonic()
        stopped = self._process.is_stopped()
        self._stopped_since = (self._stopped_since or now) if stopped else None
        if self._stopped_since is not None and now - self._stopped_since > STOPPED_GRACE_S:
            reason = f"it was stopped by a signal for {STOPPED_GRACE_S:g} s"
            return Observation(UnitState.ENDED, reason)
        return Observation(UnitState.RUNNING)

    def last_output(self) -> str:
        """Return the last 8 KiB of the worker's output."""
        return read_tail(self._belongings.log) if self.end is None else self.end.last_output

    def terminate(self) -> None:
        """Send SIGTERM to the process, now or as soon as it has started."""
        self._told_to_stop = True
        if self._process is not None:
            self._process.terminate()

    async def stop(self) -> None:
        """Stop the process, with SIGKILL after 3 s. Wait for the removal of container and files.
        Raise ProviderError if the process does not exit.
        """
        self.terminate()
        ended = asyncio.wrap_future(self._ended)
        await asyncio.wait([ended], timeout=TERMINATE_S)
        if not ended.done() and self._process is not None:
            logger.debug("worker %s did not end when asked to: it is killed", self.name)
            self._process.kill()
        if not ended.done():
            removal = 0.0 if self._belongings.removal is None else REMOVAL_S
            await asyncio.wait([ended], timeout=2 * KILL_S + removal)
        if not ended.done():
            raise ProviderError(
                f"worker {self.name} was killed and has not ended after {2 * KILL_S:g} s"
            )
        ended.result()
