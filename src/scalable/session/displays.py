"""Displays of progress: a table below a terminal's output, or lines in a log."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, TextIO

from scalable.harmless import one_line
from scalable.model.overview import Overview
from scalable.views.cluster_text import live_lines, progress_line
from scalable.views.tables import fitted

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
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
        self._tail = tail
        self._draw(lambda: self._console.print(_AsItIs(text), soft_wrap=True, end=""))

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


class _AsItIs:
    """A string that a console writes unchanged."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.segment import Segment

        yield Segment(self._text)


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
