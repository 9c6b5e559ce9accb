"""Output of tasks, from their process's streams to the clients that follow :data:`TOPIC`."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

from dask.utils import key_split
from distributed import Future, WorkerPlugin, get_worker

from scalable.dask_compat.worker import current_call
from scalable.errors import ClusterError
from scalable.protocol.handlers import Handler, request

#: Topic of the events with lines that tasks have printed.
TOPIC = "scalable-output"
#: Number of characters after which an unfinished line is sent.
LONGEST_LINE = 2_000
#: Descriptors of the streams.
STDOUT, STDERR = 1, 2
#: A line, and the descriptor of its stream.
Line = tuple[int, str]


class ShowOutput(WorkerPlugin):
    """Plugin that makes each worker process send the output of its tasks."""

    name = "scalable-output"

    def setup(self, worker: Any) -> None:
        # Workers that are threads print in the user's process.
        getattr(worker, "send_output", lambda: None)()


class TaskStream:
    """Standard output or error that also forwards the output of tasks."""

    def __init__(self, stream: Any, write: Callable[[str], bool]) -> None:
        self._stream = stream
        #: Returns whether the string is shown elsewhere instead of here.
        self._write = write
        self._process = os.getpid()

    def write(self, text: str) -> Any:
        # A forked child of a task prints too, and may inherit locks that are held.
        here = os.getpid() == self._process
        if here and type(text) is str and text and self.forward(text):
            return len(text)
        return self._stream.write(text)

    def forward(self, text: str) -> bool:
        """Forward a string, and return whether it is shown elsewhere. The stream below keeps it."""
        is_shown = self._write(text)
        if is_shown and isinstance(self._stream, TaskStream):
            self._stream.forward(text)
        return is_shown

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def label_here() -> str | None:
    """Return the worker's tag, or else the task's or worker's name. None outside workers."""
    try:
        worker = get_worker()
    except ValueError:
        return None
    tag = next(iter(worker.state.total_resources), "")
    call = current_call()
    return tag or str(worker.name if call is None else key_split(call[1]))


class ThreadLines:
    """Lines of a process's threads. If a line overwrites itself, its last state is kept."""

    def __init__(self) -> None:
        self._open: dict[tuple[int, int], str] = {}
        self._lock = threading.Lock()

    def add(self, descriptor: int, text: str) -> list[Line]:
        """Add this thread's output, and return the lines completed by it."""
        thread = descriptor, threading.get_ident()
        with self._lock:
            *whole, rest = (self._open.pop(thread, "") + text).split("\n")
            if len(rest) > LONGEST_LINE:
                rest = _visible(rest)
            if len(rest) > LONGEST_LINE:
                whole.append(rest)
            elif rest:
                self._open[thread] = rest
        return [(descriptor, _visible(line)) for line in whole]

    def rest(self) -> list[Line]:
        """Return and drop the unfinished lines."""
        with self._lock:
            rest, self._open = self._open, {}
        return [(descriptor, _visible(line)) for (descriptor, _), line in rest.items()]


def _visible(line: str) -> str:
    """Return the part of a line that a terminal shows in the end."""
    return line.rstrip("\r").rpartition("\r")[2]


async def logs_of(about: Any, scheduler: Any) -> dict[str, str]:
    """Return what tasks have printed and logged (see ``ScalableClient.get_logs``)."""
    if isinstance(about, Future):
        view = await request(scheduler, Handler.CALL, key=str(about.key))
        return {str(view["worker"]): str(view["output"])} if view["output"] else {}
    workers = (await scheduler.identity(n_workers=-1))["workers"]
    names = {address: str(worker["name"]) for address, worker in workers.items()}
    meant = [a for a, worker in workers.items() if about in (None, names[a], *worker["resources"])]
    if about is not None and not meant:
        raise ClusterError(f"no worker or pool {about!r}", hint=f"known: {sorted(names.values())}")
    logs = await scheduler.worker_logs(workers=meant)
    return {names[a]: "\n".join(line for _, line in reversed(rows)) for a, rows in logs.items()}
