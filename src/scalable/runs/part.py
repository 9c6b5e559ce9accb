"""Part of a run's record, written after a certain moment.
A detached cluster's run contains the tasks of all scripts that used the cluster.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from scalable.runs.calls import FINAL_STATES, FOUND, text_in
from scalable.runs.reading import RunRecord, read_run
from scalable.runs.streams import STREAMS, Row, StoredRows, stream_path

_ENDED = FINAL_STATES | {FOUND}


class RunPart:
    """Rows added to a run after this object was created."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        before = {
            stream: StoredRows(stream_path(self.path, stream), complete=True) for stream in STREAMS
        }
        self._begins = {stream: rows.end for stream, rows in before.items()}
        self._others: set[str | None] = _follow(set(), before["tasks"])
        self._present = _present(before["workers"])
        self._began = datetime.now(UTC)
        #: Unfinished tasks of this part in the rows that were read so far, and the end position of
        #: these rows.
        self._open: set[str | None] = set()
        self._followed = self._begins["tasks"]

    def read(self, status: str | None = None, exit_code: int | None = None) -> RunRecord:
        """Return the run's record with the new rows only. May raise RunError.
        Earlier tasks are left out, and workers that connected earlier are included. ``status``
        and ``exit_code`` describe the part. None stands for the run's value.
        """
        whole = read_run(self.path)
        ended_at = None if status is None else datetime.now(UTC).isoformat()
        times = {"started_at": self._began.isoformat(), "ended_at": ended_at}
        keep = {
            "tasks": self._is_own,
            "failures": lambda row: _task_of(row) not in self._others,
        }
        new: dict[str, Any] = {
            stream: StoredRows(stream_path(self.path, stream), begin, keep=keep.get(stream))
            for stream, begin in self._begins.items()
        }
        return dataclasses.replace(
            whole,
            run={**whole.run, **times, "exit_code": exit_code},
            status=status or whole.status,
            **new | {"workers": [*self._present, *new["workers"]]},
        )

    def has_ended(self) -> bool:
        """Return whether all tasks of the part have finished, according to the record."""
        rows = StoredRows(stream_path(self.path, "tasks"), self._followed, complete=True)
        self._followed = rows.end
        _follow(self._open, filter(self._is_own, rows))
        return not self._open

    def _is_own(self, row: Row) -> bool:
        """Return False for rows of tasks that were submitted before the part, otherwise True."""
        return text_in(row, "task_id") not in self._others


def _follow(unended: set[str | None], rows: Iterable[Row]) -> set[str | None]:
    """Update the set of unfinished tasks from rows, and return it."""
    for row in rows:
        task_id = text_in(row, "task_id")
        if text_in(row, "state") in _ENDED:
            unended.discard(task_id)
        elif task_id is not None:
            unended.add(task_id)
    return unended


def _present(rows: Iterable[Row]) -> list[Row]:
    """Return the ``started`` rows of the connected workers."""
    started: dict[Any, Row] = {}
    for row in rows:
        if row.get("event") == "started":
            started[row.get("worker")] = row
        elif row.get("event") == "removed":
            started.pop(row.get("worker"), None)
    return list(started.values())


def _task_of(failure: Mapping[str, Any]) -> str | None:
    details = failure.get("details")
    return text_in(details, "task_id") if isinstance(details, Mapping) else None
