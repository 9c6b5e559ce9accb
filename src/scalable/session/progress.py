"""`Progress`: display of a session's tasks while a block of code runs."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Any, Self, TextIO

from scalable import settings
from scalable.exports import PublicNames
from scalable.session.displays import Display, LineDisplay, LiveDisplay, can_draw
from scalable.session.watching import OverviewWatch
from scalable.showing.progress import live_lines
from scalable.spec.overview import Overview

#: Width and maximum number of lines of printed progress.
_WIDTH, _LINES = 100, 24


class Progress(PublicNames):
    """The progress of a session's tasks, shown until the end of a ``with`` block.
    Without a block, ``print`` and notebooks show the present state.
    """

    def __init__(self, present: Callable[[], Overview | None]) -> None:
        self._present = present
        self._shown: ExitStack | None = None

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            display = stack.enter_context(_display(stack))
            watch = OverviewWatch(self._present, lambda o: display.update([] if o is None else [o]))
            stack.callback(watch.stop)
            watch.start()
            self._shown = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        shown, self._shown = self._shown, None
        if shown is not None:
            shown.close()

    def __str__(self) -> str:
        overview = self._present()
        if overview is None:
            return "the session is not running"
        return "\n".join(line for line, _ in live_lines([overview], _WIDTH, _LINES))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return _html([o] if (o := self._present()) is not None else [])


def _display(stack: ExitStack) -> Display:
    """Return the display for this process, with its resources on the stack."""
    if os.environ.get(settings.RUN_OVERVIEWS):
        return Display()  # `scalable run` shows the progress
    if _in_notebook():
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

        bundle = {"text/html": _html(overviews), "text/plain": "progress of the calls"}
        if self._handle is None:
            self._handle = display(bundle, raw=True, display_id=True)
        else:
            self._handle.update(bundle, raw=True)


def _html(overviews: Sequence[Overview]) -> str:
    from scalable.markup.clusters import render_progress

    return render_progress(overviews)


def _in_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None


@contextmanager
def _logs_follow(before: Sequence[TextIO], after: Sequence[TextIO]) -> Iterator[None]:
    """Redirect log handlers to this process's present output, during a ``with`` block.
    Handlers keep the streams of the moment at which they were made.
    """
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
