"""File in which sessions report their clusters to the enclosing ``scalable run``."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from scalable.model.overview import Overview


@dataclass(frozen=True)
class ShownCluster:
    """Last overview of one session's cluster. ``ended`` is true if the session has finished."""

    overview: Overview
    ended: bool = False


class OverviewFile:
    """File with the last overview of each session's cluster.
    The process that starts the workflow creates and reads it. Sessions write to it under a lock.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def show(self, session: str, overview: Overview, *, ended: bool = False) -> None:
        """Replace the overview of a session. Raise OSError if its reader has removed the file."""
        entry = {"overview": overview.to_dict(), "ended": ended}
        self._change(lambda shown: shown.update({session: entry}))

    def end(self, session: str) -> None:
        """Mark a session as finished. Raises the errors of :meth:`show`."""

        def mark(shown: dict[str, Any]) -> None:
            if session in shown:
                shown[session]["ended"] = True

        self._change(mark)

    def read(self) -> dict[str, ShownCluster] | None:
        """Map sessions to clusters. Return None while a session writes, or without the file."""
        try:
            with self._path.open(encoding="utf-8") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                shown = json.loads(file.read() or "{}")
        except (OSError, ValueError):
            return None
        return {
            session: ShownCluster(Overview.from_dict(entry["overview"]), entry["ended"])
            for session, entry in shown.items()
        }

    def _change(self, change: Callable[[dict[str, Any]], None]) -> None:
        with self._locked() as file:
            try:
                shown: dict[str, Any] = json.loads(file.read() or "{}")
            except ValueError:  # its writer was killed
                shown = {}
            change(shown)
            file.seek(0)
            file.truncate()
            file.write(json.dumps(shown))
            file.flush()

    @contextmanager
    def _locked(self) -> Iterator[TextIO]:
        # "r+": if the reader has exited, the file is not created again.
        with self._path.open("r+", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield file
