"""Display of the output of tasks in the user's process."""

from __future__ import annotations

import contextvars
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from scalable.protocol.task_output import STDERR, STDOUT, Line, TaskStream, ThreadLines, label_here

#: Largest number of lines that wait until they can be shown.
MOST_LINES = 2_000


class OutputDisplay:
    """Display of task output in the terminal, or in the notebook cell that waits for tasks.
    A separate thread writes, because the event loop must not block on a pipe.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._lines: deque[Line] = deque()
        self._left_out = 0
        #: True if no output is pending.
        self.is_idle = True
        self._thread: threading.Thread | None = None
        #: Contexts of the threads that wait for tasks, which lead ipykernel to their cells.
        self._waiters: list[contextvars.Context] = []

    def show(self, descriptor: int, text: str) -> None:
        """Queue a string for display. Never blocks. Drops the oldest of too many strings."""
        with self._changed:
            self.is_idle = False
            self._lines.append((descriptor, text))
            if len(self._lines) > MOST_LINES:
                self._lines.popleft()
                self._left_out += 1
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="scalable output", daemon=True
                )
                self._thread.start()
            self._changed.notify_all()

    def show_event(self, event: tuple[float, Any]) -> None:
        for label, descriptor, line in event[1]:
            self.show(descriptor, f"[{label}] {line}\n")

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Show output in this thread's cell while it waits, and pending output at the end."""
        context = contextvars.copy_context()
        with self._changed:
            self._waiters.append(context)
            self._changed.notify_all()
        try:
            yield
        finally:
            self.flush()
            with self._changed:
                self._waiters.remove(context)

    def settle(self) -> None:
        """Show pending output in this thread's cell."""
        if not self.is_idle:
            with self.waiting():
                pass

    def flush(self, timeout_s: float = 1.0) -> None:
        """Wait until all output is shown, but at most ``timeout_s`` seconds."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while not self.is_idle:
                left = deadline - time.monotonic()
                if left <= 0 or not self._changed.wait(left):
                    return

    def _run(self) -> None:
        notebook = in_notebook()
        while True:
            with self._changed:
                while not self._lines or (notebook and not self._waiters):
                    self._changed.wait()
                lines = list(self._lines)
                self._lines.clear()
                if self._left_out:
                    lines.insert(0, (STDERR, f"[{self._left_out} lines are left out]\n"))
                    self._left_out = 0
                context = self._waiters[-1].copy() if self._waiters else contextvars.Context()
            try:
                context.run(_write, lines)
            finally:
                with self._changed:
                    self.is_idle = not self._lines
                    self._changed.notify_all()


def _write(lines: list[Line]) -> None:
    try:
        for descriptor, text in lines:
            (sys.stderr if descriptor == STDERR else sys.stdout).write(text)
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):
        return  # closed, full, or nobody reads it


#: The display of this process.
display = OutputDisplay()


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None


class NotebookStreams:
    """Standard output and error of a kernel. Worker threads print in the waiting cell."""

    def __init__(self) -> None:
        self._before = sys.stdout, sys.stderr
        self._lines = ThreadLines()
        sys.stdout = self._out = TaskStream(sys.stdout, lambda text: self._wrote(STDOUT, text))
        sys.stderr = self._err = TaskStream(sys.stderr, lambda text: self._wrote(STDERR, text))

    def _wrote(self, descriptor: int, text: str) -> bool:
        name = label_here()
        if name is None:
            return False
        for stream, line in self._lines.add(descriptor, text):
            display.show(stream, f"[{name}] {line}\n")
        return True

    def close(self) -> None:
        """Restore the original streams, unless they were replaced in the meantime."""
        for descriptor, line in self._lines.rest():
            display.show(descriptor, f"{line}\n")
        display.settle()
        if sys.stdout is self._out:
            sys.stdout = self._before[0]
        if sys.stderr is self._err:
            sys.stderr = self._before[1]
