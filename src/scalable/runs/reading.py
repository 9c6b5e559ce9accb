"""Reading of recorded runs. A last line that is incomplete because of a crash is skipped."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from scalable.errors import RunError
from scalable.liveness import process_gone
from scalable.runs.calls import FINAL_STATES, FOUND, presences
from scalable.runs.streams import (
    LOCK_FILE,
    PLAN_FILE,
    RUN_FILE,
    STREAMS,
    Row,
    StoredRows,
    decode_object,
    mapping,
    read_or_empty,
    stream_path,
    text,
)


@dataclass(frozen=True)
class RunRecord:
    """Record of a run. The rows of a stream are decoded again in each iteration."""

    path: Path
    #: Contents of ``run.json``.
    run: Row
    #: ``running``, ``completed``, ``failed``, ``cancelled``, or ``interrupted``: ``run.json`` has
    #: ``running``, but the process of the run is gone.
    status: str
    #: One row per change of a task's state. ``docs/records.md`` has the keys of these rows, of
    #: failures and of cache outcomes. Any measurement may be null.
    tasks: Sequence[Row] = ()
    #: Keys: event (requested, started, removed, billed), worker, tag, timestamp, reason, and host
    #: when a worker connected. Rows with ``billed`` have the cost of a machine up to their time, of
    #: which the last one counts. Their other keys: manager, used_s, cost, idle_cost (time without
    #: tasks), and budget for the scheduler's machine.
    workers: Sequence[Row] = ()
    #: Keys: timestamp, worker, tag, cpu_percent, memory, limit (bytes).
    resources: Sequence[Row] = ()
    failures: Sequence[Row] = ()
    #: Keys: timestamp, tag, action (scale-up, scale-down), from, to, reason, source.
    scaling: Sequence[Row] = ()
    #: Keys: name, path or uri, kind, timestamp, metadata, bytes, sha256.
    artifacts: Sequence[Row] = ()
    #: Cache outcomes.
    remembered: Sequence[Row] = ()
    #: Contents of ``plan.json``, empty if it is missing.
    plan: Row = field(default_factory=dict)
    #: Contents of ``manifest.lock``, empty if it is missing.
    manifest_lock: str = ""

    @property
    def malformed_lines(self) -> int:
        """Number of unreadable lines in all files, without incomplete last lines."""
        streams = (getattr(self, stream) for stream in STREAMS)
        return sum(rows.malformed for rows in streams if isinstance(rows, StoredRows))


def read_run(path: str | os.PathLike[str]) -> RunRecord:
    """Read the current record of a run. Incomplete or invalid lines and missing files are skipped.
    Raises RunError if ``run.json`` is missing or invalid, or a file cannot be read.
    """
    directory = Path(path)
    try:
        run, status = read_status(directory)
        streams = {stream: StoredRows(directory, stream) for stream in STREAMS}
        return RunRecord(
            path=directory,
            run=run,
            status=status,
            plan=decode_object(read_or_empty(directory / PLAN_FILE)) or {},
            manifest_lock=read_or_empty(directory / LOCK_FILE).decode(errors="replace").strip(),
            **streams,
        )
    except OSError as error:
        raise RunError(f"cannot read the run in {directory}: {error}") from error


def read_status(directory: Path) -> tuple[Row, str]:
    """Return the contents of run.json, and the status of the run as in :class:`RunRecord`."""
    run = _read_run_file(directory)
    if run.get("status") == "running" and process_gone(run, last_write(directory), time.time()):
        # The process may have closed the run after the first read.
        run = _read_run_file(directory)
        if run.get("status") == "running":
            return run, "interrupted"
    return run, str(run.get("status"))


def _read_run_file(directory: Path) -> Row:
    data = read_or_empty(directory / RUN_FILE)
    run = decode_object(data)
    if run is None:
        fault = f"{RUN_FILE}{_fault_in(data)}" if data else f"{RUN_FILE} is missing or empty"
        raise RunError(
            f"{directory} is not a recorded run: its {fault}",
            hint="give the directory of one run, run-<time>-<project>-<hash>",
        )
    return run


def _fault_in(data: bytes) -> str:
    """Return the position and the reason why data is not a JSON object."""
    try:
        json.loads(data)
    except (ValueError, RecursionError) as error:
        at = f":{error.lineno}:{error.colno}" if isinstance(error, json.JSONDecodeError) else ""
        return f"{at} is damaged: {getattr(error, 'msg', error)}"
    return " is not a JSON object"


def last_write(directory: Path) -> float:
    """Return the time of the last write to a run, in epoch seconds."""
    files = (stream_path(directory, stream) for stream in STREAMS)
    times = [path.stat().st_mtime for path in files if path.exists()]
    return max([directory.stat().st_mtime, *times])


# Part of a record ---------------------------------------------------------------------------------

_ENDED = FINAL_STATES | {FOUND}


class RunPart:
    """Rows added to a run after this object was created.
    A detached cluster's run contains the tasks of all scripts that used the cluster.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        before = {stream: StoredRows(self.path, stream, complete=True) for stream in STREAMS}
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
            "failures": lambda row: self._is_own(mapping(row.get("details"))),
        }
        new: dict[str, Any] = {
            stream: StoredRows(self.path, stream, begin, keep=keep.get(stream))
            for stream, begin in self._begins.items()
        }
        return replace(
            whole,
            run={**whole.run, **times, "exit_code": exit_code},
            status=status or whole.status,
            **new | {"workers": [*self._present, *new["workers"]]},
        )

    def has_ended(self) -> bool:
        """Return whether all tasks of the part have finished, according to the record."""
        rows = StoredRows(self.path, "tasks", self._followed, complete=True)
        self._followed = rows.end
        _follow(self._open, filter(self._is_own, rows))
        return not self._open

    def _is_own(self, row: Mapping[str, Any]) -> bool:
        """Return False for rows of tasks that were submitted before the part, otherwise True."""
        return text(row.get("task_id")) not in self._others


def _follow(unended: set[str | None], rows: Iterable[Row]) -> set[str | None]:
    """Update the set of unfinished tasks from rows, and return it."""
    for row in rows:
        task_id = text(row.get("task_id"))
        if text(row.get("state")) in _ENDED:
            unended.discard(task_id)
        elif task_id is not None:
            unended.add(task_id)
    return unended


def _present(rows: Iterable[Row]) -> list[Row]:
    """Return the ``started`` rows of the connected workers."""
    present = {each.worker for each in presences(rows) if each.reason is None}
    started = (row for row in rows if row.get("event") == "started")
    return list({row["worker"]: row for row in started if row.get("worker") in present}.values())
