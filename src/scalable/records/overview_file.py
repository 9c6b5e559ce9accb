"""The file in which sessions show their clusters to the ``scalable run`` around them."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from scalable.spec.overview import Overview


@dataclass(frozen=True)
class ShownCluster:
    """The cluster of one session, as it was last shown.

    Attributes
    ----------
    overview
        Its last overview.
    ended
        Whether the session has ended.
    """

    overview: Overview
    ended: bool = False


class OverviewFile:
    """The last overviews of the clusters of a workflow's sessions, in one file.

    The process that started the workflow makes the file and reads it; sessions, which may be in
    several processes, write into it. A lock keeps readers from half a text.

    Parameters
    ----------
    path
        The file; it exists.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def show(self, session: str, overview: Overview, *, ended: bool = False) -> None:
        """Replace the overview of a session.

        Parameters
        ----------
        session
            Name of the session, unique among the workflow's.
        overview
            Overview of its cluster.
        ended
            Whether the session has ended.

        Raises
        ------
        OSError
            If the file cannot be written, for example because its reader has ended.
        """
        entry = {"overview": overview.to_dict(), "ended": ended}
        self._change(lambda shown: shown.update({session: entry}))

    def end(self, session: str) -> None:
        """Mark a session as ended; errors are those of :meth:`show`."""

        def mark(shown: dict[str, Any]) -> None:
            if session in shown:
                shown[session]["ended"] = True

        self._change(mark)

    def read(self) -> dict[str, ShownCluster] | None:
        """Return session -> its cluster; None while a session writes, or if the file is gone."""
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
        # "r+": a file whose reader has ended is not made again.
        with self._path.open("r+", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield file
