"""Output of tasks: what workers keep of it, and what they send to the clients that show it."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from scalable.dask_compat.worker import current_call
from scalable.harmless import sendable
from scalable.protocol.failures import LAST_CHARACTERS, last_lines
from scalable.protocol.task_output import (
    STDERR,
    STDOUT,
    TOPIC,
    Line,
    TaskStream,
    ThreadLines,
    label_here,
)
from scalable.worker.bundles import running_bundle

#: Seconds between two messages of a worker, and largest number of characters of one message.
SEND_S = 0.2
MOST_CHARACTERS = 16_000
#: Number of tasks whose last output is kept.
KEPT_TASKS = 50


class OutputSender:
    """Sends the output of a worker process's tasks to the clients that follow it."""

    def __init__(self, worker: Any) -> None:
        self._worker = worker
        self._label = next(iter(worker.state.total_resources), "") or str(worker.name)
        self._loop_thread = threading.get_ident()
        self._lines = ThreadLines()
        self._lock = threading.Lock()
        self._waiting: list[tuple[str, int, str]] = []
        self._characters = self._left_out = 0
        #: True if output is pending.
        self.is_due = False
        sys.stdout = TaskStream(sys.stdout, lambda text: self._wrote(STDOUT, text))
        sys.stderr = TaskStream(sys.stderr, lambda text: self._wrote(STDERR, text))

    def flush(self) -> None:
        """Send all pending output ahead of the worker's next message. Runs in the event loop."""
        if self.is_due:
            self._add(self._lines.rest())
            self._send()

    def _wrote(self, descriptor: int, text: str) -> bool:
        if threading.get_ident() == self._loop_thread and label_here() is None:
            return False  # the worker's own messages
        self._add(self._lines.add(descriptor, text))
        if not self.is_due:
            self.is_due = True
            self._worker.loop.add_callback(self._worker.loop.call_later, SEND_S, self._send)
        return False

    def _add(self, lines: list[Line]) -> None:
        label = label_here() or self._label
        with self._lock:
            for descriptor, line in lines:
                if self._characters + len(line) > MOST_CHARACTERS:
                    self._left_out += 1
                    continue
                self._characters += len(line) + 1
                self._waiting.append((label, descriptor, sendable(line)))

    def _send(self) -> None:
        self.is_due = False
        with self._lock:
            lines, self._waiting = self._waiting, []
            left_out, self._left_out, self._characters = self._left_out, 0, 0
        if left_out:
            lines.append((self._label, STDERR, f"[{left_out} lines are left out; see the log]"))
        if lines:
            self._worker.log_event(TOPIC, lines)


class LastPrinted:
    """Last output of the latest tasks that have printed in this process."""

    def __init__(self) -> None:
        self._texts: dict[Any, str] = {}

    def add(self, text: str) -> None:
        """Add output of the task that runs here. Output outside of tasks is ignored."""
        if (task := _task_here()) is None:
            return
        self._texts[task] = (self._texts.pop(task, "") + text)[-LAST_CHARACTERS:]
        if len(self._texts) > KEPT_TASKS:
            with suppress(KeyError, RuntimeError):  # another thread drops it
                del self._texts[next(iter(self._texts))]

    def take(self) -> str | None:
        """Return and drop the last lines that this thread's task has printed. None if none."""
        return last_lines(self._texts.pop(_task_here(), "")) or None


def _task_here() -> Any:
    """Return an id of the task that runs in this thread or coroutine, or None."""
    call = current_call()
    if call is not None:
        bundle = running_bundle(call[1])
        return call[1] if bundle is None else (call[1], bundle.began)
    with suppress(RuntimeError):  # no event loop runs in this thread
        coroutine = asyncio.current_task()
        return None if coroutine is None else coroutine.get_name()
    return None


# Output that workers keep -------------------------------------------------------------------------

#: Number of the last lines that a worker keeps.
KEPT_LINES = 1_000


class KeptOutput:
    """The last lines that a worker's tasks have printed or logged, each with the task's key.
    ``file`` receives all lines of a worker that is a thread; those of a process have their own.
    """

    def __init__(self, file: Path | None) -> None:
        self.lines: deque[tuple[float, str, str]] = deque(maxlen=KEPT_LINES)
        self._file = file
        self._open = ThreadLines()
        self._lock = threading.Lock()

    def add(self, key: str, descriptor: int, text: str) -> None:
        """Add output of a task. Thread-safe. An error of the file system is ignored."""
        lines = [line for _, line in self._open.add(descriptor, text)]
        self.lines.extend((time.time(), key, line) for line in lines)
        if self._file is None or not lines:
            return
        with self._lock, suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with self._file.open("a", encoding="utf-8", errors="backslashreplace") as file:
                file.writelines(f"{line}\n" for line in lines)

    def of(self, key: str) -> str | None:
        """Return the last lines of a task, or None if it has printed none."""
        return last_lines("".join(f"{line}\n" for _, of, line in self.lines if of == key)) or None


class TaskStreams:
    """Standard output and error of this process, which pass on what tasks print to their workers.
    They are in place while a worker is open. Log handlers that write to the streams follow them.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._workers = 0
        self._streams: list[tuple[str, Any, TaskStream]] = []

    def attach(self) -> None:
        with self._lock:
            self._workers += 1
            ours = [stream for _, _, stream in self._streams]
            for descriptor, name in ((STDOUT, "stdout"), (STDERR, "stderr")):
                before = getattr(sys, name)
                if before in ours:  # else somebody has replaced it since
                    continue
                stream = TaskStream(before, partial(_keep, descriptor))
                self._streams.append((name, before, stream))
                setattr(sys, name, stream)
                _move_handlers(before, stream)

    def detach(self) -> None:
        with self._lock:
            self._workers -= 1
            if self._workers:
                return
            for name, before, stream in reversed(self._streams):
                _move_handlers(stream, before)
                if getattr(sys, name) is stream:  # nobody has replaced it since
                    setattr(sys, name, before)
            self._streams.clear()


def _keep(descriptor: int, text: str) -> bool:
    if (call := current_call()) is not None:
        worker, key = call
        kept: KeptOutput | None = getattr(worker, "kept_output", None)
        if kept is not None:
            kept.add(str(key), descriptor, text)
    return False


def _move_handlers(before: Any, after: Any) -> None:
    """Make the root logger's handlers that write to one stream write to another."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.StreamHandler) and handler.stream is before:
            handler.setStream(after)


#: The streams of this process.
task_streams = TaskStreams()
