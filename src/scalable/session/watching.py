"""Overviews of a session's cluster, requested repeatedly in a thread."""

from __future__ import annotations

import logging
import os
import threading
import uuid
from collections.abc import Callable
from pathlib import Path

from scalable import settings
from scalable.errors import ClusterError
from scalable.records.overview_file import OverviewFile
from scalable.spec.overview import Overview

logger = logging.getLogger("scalable.session")

#: Seconds between two overviews.
INTERVAL_S = 1.0
#: Longest wait for the end of the thread, because one request may take as long.
END_S = 6.0


class OverviewWatch:
    """A thread that requests overviews, and passes them to a callback in the thread.
    The callback gets None when there is no longer an overview.
    A ClusterError, OSError, RuntimeError or TimeoutError of ``ask`` counts as no overview.
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
    """The overviews of a session, shown to the ``scalable run`` around it."""

    def __init__(self, file: OverviewFile, ask: Callable[[], Overview | None]) -> None:
        self._file = file
        self._session = uuid.uuid4().hex
        self._lost = False
        self._watch = OverviewWatch(ask, self._tell)

    @classmethod
    def begin(cls, ask: Callable[[], Overview | None]) -> ShownToRun | None:
        """Start to show overviews, or return None if no ``scalable run`` waits for them."""
        path = os.environ.get(settings.RUN_OVERVIEWS)
        if not path:
            return None
        shown = cls(OverviewFile(Path(path)), ask)
        shown._watch.start()
        return shown

    def end(self) -> None:
        """Show the last overview as that of a closed session."""
        self._watch.stop()
        self._write(lambda: self._file.end(self._session))

    def _tell(self, overview: Overview | None) -> None:
        if overview is not None:
            self._write(lambda: self._file.show(self._session, overview))

    def _write(self, write: Callable[[], None]) -> None:
        if self._lost:
            return
        try:
            write()
        except OSError as error:
            self._lost = True
            logger.debug("overviews are no longer shown: %s", error)
