"""The part of a run's record that was written after a certain moment.

A run of a detached cluster contains the calls of all scripts that used the cluster.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from scalable.telemetry.reading import Row, RunRecord, RunTail, read_run

FINAL_STATES = frozenset({"succeeded", "failed", "cancelled", "found"})


class RunPart:
    """The rows that are added to a run from the making of this object on.

    Parameters
    ----------
    path
        Directory of the run.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._tail = RunTail(path)
        before = self._tail.poll()
        last = {row.get("task_id"): row.get("state") for row in before["tasks"]}
        self._others = {task for task, state in last.items() if state not in FINAL_STATES}
        self._present = _present(before["workers"])
        self._began = datetime.now(UTC)
        self._rows: dict[str, list[Row]] = {stream: [] for stream in before}

    def read(self, status: str | None = None, exit_code: int | None = None) -> RunRecord:
        """Return the record of the run, with the new rows only.

        Calls that were submitted before do not count. Workers that were present do.

        Parameters
        ----------
        status, exit_code
            Status and exit code of the part, which ends now; None for the status of the run.

        Raises
        ------
        RunError
            If the run cannot be read.
        """
        for stream, rows in self._tail.poll().items():
            self._rows[stream] += rows
        new = self._rows
        tasks = [row for row in new["tasks"] if row.get("task_id") not in self._others]
        failures = [row for row in new["failures"] if _task_of(row) not in self._others]
        whole = read_run(self.path)
        ended_at = None if status is None else datetime.now(UTC).isoformat()
        times = {"started_at": self._began.isoformat(), "ended_at": ended_at}
        return dataclasses.replace(
            whole,
            run={**whole.run, **times, "exit_code": exit_code},
            status=status or whole.status,
            tasks=tasks,
            failures=failures,
            workers=[*self._present, *new["workers"]],
            resources=new["resources"],
            scaling=new["scaling"],
            artifacts=new["artifacts"],
            remembered=new["remembered"],
            malformed_lines=0,
        )

    def has_ended(self) -> bool:
        """Return whether all calls of the part have ended, according to the record."""
        last = {row.get("task_id"): row.get("state") for row in self.read().tasks}
        return FINAL_STATES.issuperset(last.values())


def _present(rows: Iterable[Row]) -> list[Row]:
    """Return the rows about the workers that are connected, from all rows about workers."""
    started: dict[Any, Row] = {}
    for row in rows:
        if row.get("event") == "started":
            started[row.get("worker")] = row
        elif row.get("event") == "removed":
            started.pop(row.get("worker"), None)
    return list(started.values())


def _task_of(failure: Mapping[str, Any]) -> Any:
    details = failure.get("details")
    return details.get("task_id") if isinstance(details, Mapping) else None
