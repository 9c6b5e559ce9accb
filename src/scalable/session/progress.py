"""`Progress`: display of a session's tasks while a block of code runs."""

from __future__ import annotations

import logging
import os
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Self, TextIO

from scalable import settings
from scalable.client.task_output import in_notebook
from scalable.errors import ClusterError
from scalable.model.overview import Overview
from scalable.records.overview_file import OverviewFile
from scalable.session.displays import Display, LineDisplay, LiveDisplay, can_draw
from scalable.views.cluster_text import live_lines


class Progress:
    """Progress of a session's tasks, until the end of a ``with`` block or at the moment."""

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

    def __exit__(self, *_: object) -> None:
        shown, self._shown = self._shown, None
        if shown is not None:
            shown.close()

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

logger = logging.getLogger("scalable.session")

#: Seconds between two overviews.
INTERVAL_S = 1.0
#: Longest wait for the end of the thread, because one request may take as long.
END_S = 6.0


class OverviewWatch:
    """A thread that requests overviews, and calls a function with each of them.
    The function gets None when overviews end. A ClusterError, OSError or RuntimeError of ``ask``
    counts as no overview.
    """

    def __init__(
        self, ask: Callable[[], Overview | None], told: Callable[[Overview | None], None]
    ) -> None:
        self._ask, self._told = ask, told
        self._over = threading.Event()
        self._knew = False
        self._thread = threading.Thread(target=self._run, name="scalable-overviews", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread after a last overview, waiting at most 6 s."""
        if not self._over.is_set():
            self._over.set()
            if self._thread is not threading.current_thread():
                self._thread.join(END_S)

    def _run(self) -> None:
        over = False
        while not over:
            over = self._over.wait(INTERVAL_S if self._knew else INTERVAL_S / 4)
            self._look()

    def _look(self) -> None:
        overview = None
        try:
            overview = self._ask()
        # A cluster that is being deleted raises any of these.
        except (ClusterError, OSError, RuntimeError, TimeoutError) as error:
            logger.debug("there is no overview: %s", error)
        if overview is not None or self._knew:
            self._knew = overview is not None
            self._told(overview)


class ShownToRun:
    """Overviews of a session, shown to the enclosing ``scalable run``."""

    def __init__(self, path: str, ask: Callable[[], Overview | None]) -> None:
        self._file, self._session = OverviewFile(Path(path)), uuid.uuid4().hex
        self._watch = OverviewWatch(ask, self._tell)
        self._watch.start()

    @classmethod
    def begin(cls, ask: Callable[[], Overview | None]) -> ShownToRun | None:
        """Start showing overviews, or return None if there is no ``scalable run`` to show them."""
        path = os.environ.get(settings.RUN_OVERVIEWS)
        return cls(path, ask) if path else None

    def end(self) -> None:
        """Show the last overview as that of a closed session."""
        self._watch.stop()
        with suppress(OSError):  # its reader has removed the file
            self._file.end(self._session)

    def _tell(self, overview: Overview | None) -> None:
        if overview is not None:
            with suppress(OSError):  # its reader has removed the file
                self._file.show(self._session, overview)
