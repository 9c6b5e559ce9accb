"""Displays of progress: a table below a terminal's output, in a notebook, or lines in a log."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TextIO

from scalable import settings
from scalable.errors import ClusterError
from scalable.harmless import one_line
from scalable.model.overview import Overview
from scalable.records.overview_file import OverviewFile
from scalable.views.cluster_text import live_lines, progress_line
from scalable.views.tables import fitted

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

logger = logging.getLogger("scalable.session")

#: Seconds between two progress lines.
LINE_INTERVAL_S = 10.0
_STYLES = {"title": "bold", "header": "bold dim", "soft": "dim", "bad": "red"}


class Display(AbstractContextManager["Display"]):
    """Display of progress, cleared on exit. The base class shows nothing."""

    def update(self, overviews: Sequence[Overview]) -> None:
        """Show the progress of these clusters."""

    def show(self, line: str) -> None:
        """Show a line of progress, if there is a display of lines."""

    def close(self) -> None:
        """Remove the display."""

    def __exit__(self, *_: object) -> None:
        self.close()


class LineDisplay(Display):
    """Display of one line every ten seconds, by default on standard error, for pipes and logs."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream
        self._began = time.monotonic()
        self._shown_at = float("-inf")
        self._shown = self._last = ""

    def update(self, overviews: Sequence[Overview]) -> None:
        if overviews:
            self.show(progress_line(overviews))

    def show(self, line: str) -> None:
        self._last = one_line(line)
        if time.monotonic() - self._shown_at >= LINE_INTERVAL_S:
            self._print()

    def close(self) -> None:
        """Print the last state, unless it is shown already."""
        if self._last != self._shown:
            self._print()

    def _print(self) -> None:
        self._shown, self._shown_at = self._last, time.monotonic()
        elapsed_s = self._shown_at - self._began
        stream = sys.stderr if self._stream is None else self._stream
        try:
            stream.write(f"[{elapsed_s:4.0f} s] {self._shown}\n")
            stream.flush()
        except (OSError, ValueError) as error:  # its reader is gone, or it is closed
            logger.debug("progress is not shown: %s", error)


class LiveDisplay(Display):
    """Table of task names in the last lines of a terminal, below all other output.
    The cursor stays visible, so that a killed program leaves a usable terminal.
    """

    def __init__(
        self, stream: TextIO, *, redirect_stdout: bool = False, redirect_stderr: bool = False
    ) -> None:
        from rich.live import Live

        self._began = time.monotonic()
        self._console = _console(stream)
        self._overviews: Sequence[Overview] = ()
        self._tail = ""
        self._live = Live(
            get_renderable=self._table,
            console=self._console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=redirect_stdout,
            redirect_stderr=redirect_stderr,
            vertical_overflow="crop",
        )
        self._lock = threading.RLock()
        self._live.start()
        self.lives = True

    def update(self, overviews: Sequence[Overview]) -> None:
        self._overviews = overviews
        self._draw(self._live.refresh)

    def tail(self, text: str) -> None:
        if text != self._tail:
            self._tail = text
            self._draw(self._live.refresh)

    def print(self, text: str, tail: str = "") -> None:
        """Print complete lines above the table, with their colours, then an incomplete ``tail``."""
        from rich.segment import Segment, Segments

        self._tail, as_it_is = tail, Segments([Segment(text)])
        self._draw(lambda: self._console.print(as_it_is, soft_wrap=True, end=""))

    def close(self) -> None:
        self._overviews, self._tail = (), ""
        self._draw(self._live.stop)
        self.lives = False

    def _table(self) -> Text:
        from rich.text import Text

        # One cell stays free, because some terminals start a new line after the last one.
        width, height = self._console.width - 1, self._console.height
        text = Text(no_wrap=True, overflow="crop", end="")
        elapsed_s = time.monotonic() - self._began
        lines = live_lines(self._overviews, width, height - bool(self._tail), elapsed_s)
        if self._tail:
            lines.insert(0, (fitted(self._tail, width), ""))
        for number, (line, style) in enumerate(lines):
            text.append("\n" if number else "")
            text.append(line, style=_STYLES.get(style, ""))
        return text

    def _draw(self, draw: Callable[[], None]) -> None:
        with self._lock:
            if not self.lives:
                return
            try:
                draw()
            except (OSError, ValueError) as error:  # the terminal is gone, or its file is closed
                self.lives = False
                logger.debug("progress is not shown: %s", error)


def _console(stream: TextIO) -> Console:
    from rich.console import Console

    class VisibleCursor(Console):
        def show_cursor(self, show: bool = True) -> bool:  # noqa: ARG002
            return False

    return VisibleCursor(file=stream, highlight=False, markup=False, emoji=False)


def can_draw(stream: TextIO) -> bool:
    """Return whether a stream is a terminal with a movable cursor, used by a foreground process."""
    try:
        number = stream.fileno()
        return (
            os.isatty(number)
            and os.environ.get("TERM", "") not in ("", "dumb", "unknown")
            and os.tcgetpgrp(number) == os.getpgrp()
        )
    except (OSError, ValueError):  # no file, or not the terminal that controls this process
        return False


# Progress of a session ----------------------------------------------------------------------------


class Progress:
    """Progress of a session's tasks, until the end of a ``with`` block or at the moment."""

    def __init__(self, present: Callable[[], Overview | None]) -> None:
        self._present = present
        self._shown = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            display = stack.enter_context(_display(stack))
            stack.enter_context(watched(self._present, display.update))
            self._shown = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._shown.close()

    def __str__(self) -> str:
        overview = self._present()
        if overview is None:
            return "the session is not running"
        return "\n".join(line for line, _ in live_lines([overview]))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return _html([o] if (o := self._present()) is not None else [])


def _display(stack: ExitStack) -> Display:
    """Return the display for this process, and register its cleanup on ``stack``."""
    from scalable.client.task_output import in_notebook

    if os.environ.get(settings.RUN_OVERVIEWS):
        return Display()  # `scalable run` shows the progress
    if in_notebook():
        return NotebookDisplay()
    if can_draw(sys.stderr):
        before = (sys.stdout, sys.stderr)
        display = LiveDisplay(sys.stderr, redirect_stdout=sys.stdout.isatty(), redirect_stderr=True)
        stack.enter_context(_logs_follow(before, (sys.stdout, sys.stderr)))
        return display
    return LineDisplay()


class NotebookDisplay(Display):
    """Table in the output of a notebook's cell, kept up to date."""

    def __init__(self) -> None:
        self._handle: Any = None

    def update(self, overviews: Sequence[Overview]) -> None:
        from IPython.display import display

        bundle = {"text/html": _html(overviews), "text/plain": "progress of the tasks"}
        if self._handle is None:
            self._handle = display(bundle, raw=True, display_id=True)
        else:
            self._handle.update(bundle, raw=True)


def _html(overviews: Sequence[Overview]) -> str:
    from scalable.views.notebooks import render_progress

    return render_progress(overviews)


@contextmanager
def _logs_follow(before: Sequence[TextIO], after: Sequence[TextIO]) -> Iterator[None]:
    """Redirect log handlers to this process's current output during a ``with`` block."""
    loggers = [logging.getLogger(), *map(logging.getLogger, list(logging.root.manager.loggerDict))]
    changed: list[tuple[logging.StreamHandler[Any], Any]] = []
    for handler in {handler for each in loggers for handler in each.handlers}:
        if isinstance(handler, logging.StreamHandler) and handler.stream in before:
            changed.append((handler, handler.stream))
            handler.setStream(after[list(before).index(handler.stream)])
    try:
        yield
    finally:
        for handler, stream in changed:
            handler.setStream(stream)


# Watching -----------------------------------------------------------------------------------------

#: Seconds between two overviews.
INTERVAL_S = 1.0
#: Longest wait for the end of the thread, because one request may take as long.
END_S = 6.0


@contextmanager
def watched(
    ask: Callable[[], Overview | None], told: Callable[[Sequence[Overview]], None]
) -> Iterator[None]:
    """Request overviews in a thread during a ``with`` block, and call a function with each of them.
    The function gets none when overviews end. A ClusterError, OSError or RuntimeError of ``ask``
    counts as no overview. After the block, a last one is requested, for at most 6 s.
    """
    over = threading.Event()

    def run() -> None:
        is_last = knew = False
        while not is_last:
            is_last = over.wait(INTERVAL_S if knew else INTERVAL_S / 4)
            overview = None
            try:
                overview = ask()
            # A cluster that is being deleted raises any of these.
            except (ClusterError, OSError, RuntimeError) as error:
                logger.debug("there is no overview: %s", error)
            if overview is not None or knew:
                knew = overview is not None
                told([] if overview is None else [overview])

    thread = threading.Thread(target=run, name="scalable-overviews", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        if thread is not threading.current_thread():
            thread.join(END_S)


def shown_to_run(present: Callable[[], Overview | None]) -> ExitStack:
    """Show overviews to the enclosing ``scalable run``, if any, until the result is closed."""
    stack = ExitStack()
    if path := os.environ.get(settings.RUN_OVERVIEWS):
        file, session = OverviewFile(Path(path)), uuid.uuid4().hex

        def show(overviews: Sequence[Overview]) -> None:
            for overview in overviews:
                with suppress(OSError):  # its reader has removed the file
                    file.show(session, overview)

        stack.enter_context(suppress(OSError))
        stack.callback(file.end, session)
        stack.enter_context(watched(present, show))
    return stack
