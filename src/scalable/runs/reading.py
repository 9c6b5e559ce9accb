"""Reading of recorded runs: a whole record, or new rows while the run continues.
If the writer crashes, a file may have an incomplete last line, which is skipped.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from scalable.errors import RunError
from scalable.files import read_regular
from scalable.liveness import process_gone
from scalable.runs.streams import (
    LOCK_FILE,
    PLAN_FILE,
    RUN_FILE,
    STREAMS,
    Row,
    StoredRows,
    decode_object,
    stream_path,
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
    #: One row per change of a task's state. Keys: task_id, task_name, tag, worker, state
    #: (submitted, running, succeeded, failed, cancelled, found), timestamp. ``found`` is a cache
    #: hit on a worker. ``rerun`` rows of restarted tasks have reason, lost (worker) and count. Rows
    #: of the last four states also have queued_s, duration_s, transfer_s, cpu_s (seconds),
    #: peak_memory, nbytes (of the result) and input_bytes (of results that are arguments, or 0).
    #: Any of these may be null. ``after`` is the task for which a task waited last. The last row of
    #: a bundle has ``calls``: count, failed, total_s and quantiles_s (share to seconds) of the
    #: tasks that ran, and found, the number of cache hits.
    tasks: Sequence[Row] = ()
    #: Keys: event (requested, started, removed, billed), worker, tag, timestamp, reason, and host
    #: when a worker connected. Rows with ``billed`` have the cost of a machine up to their time, of
    #: which the last one counts. Their other keys: manager, used_s, cost, idle_cost (time without
    #: tasks), and budget for the scheduler's machine.
    workers: Sequence[Row] = ()
    #: Keys: timestamp, worker, tag, cpu_percent, memory, limit (bytes).
    resources: Sequence[Row] = ()
    #: Keys: failure_class, message, timestamp, count, details (phase, task_id, worker, traceback).
    failures: Sequence[Row] = ()
    #: Keys: timestamp, tag, action (scale-up, scale-down), from, to, reason, source.
    scaling: Sequence[Row] = ()
    #: Keys: name, path or uri, kind, timestamp, metadata, bytes, sha256.
    artifacts: Sequence[Row] = ()
    #: Cache outcomes. Keys: timestamp, task_name, tag, task_id (null if the client had the hit),
    #: kind (found, waited, missed), count, key (of the first task, if a worker had the hit),
    #: saved_s (seconds that computing the results had taken). Misses also have reason, changed
    #: (parts of the key), and nearest (key of an earlier result).
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
        streams = {stream: StoredRows(stream_path(directory, stream)) for stream in STREAMS}
        return RunRecord(
            path=directory,
            run=run,
            status=status,
            plan=decode_object(_read(directory / PLAN_FILE)) or {},
            manifest_lock=_read(directory / LOCK_FILE).decode(errors="replace").strip(),
            **streams,
        )
    except OSError as error:
        raise RunError(f"cannot read the run in {directory}: {error}") from error


class RunTail:
    """Reader of the rows that are added to a run. Its ``.jsonl`` files may not exist yet."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._directory = Path(path)
        self._offsets = dict.fromkeys(STREAMS, 0)

    def poll(self) -> dict[str, list[Row]]:
        """Return each stream's complete rows since the last poll. Invalid lines are skipped."""
        return {stream: list(self.added(stream)) for stream in STREAMS}

    def added(self, stream: str) -> Iterable[Row]:
        """Return the rows written to one stream since the last poll."""
        path, begin = stream_path(self._directory, stream), self._offsets[stream]
        try:
            rows = StoredRows(path, begin, complete=True)
        except RunError:
            return ()
        self._offsets[stream] = rows.end
        return rows


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
    data = _read(directory / RUN_FILE)
    run = decode_object(data)
    if run is None:
        fault = "is not a JSON object" if data else "is missing or empty"
        raise RunError(
            f"{directory} is not a recorded run: its {RUN_FILE} {fault}",
            hint="give the directory of one run, run-<time>-<project>-<hash>",
        )
    return run


def _read(path: Path) -> bytes:
    try:
        return read_regular(path)
    except (FileNotFoundError, NotADirectoryError):
        return b""


def last_write(directory: Path) -> float:
    """Return the time of the last write to a run, in epoch seconds."""
    times = [directory.stat().st_mtime]
    for stream in STREAMS:
        try:
            times.append(stream_path(directory, stream).stat().st_mtime)
        except FileNotFoundError:
            continue
    return max(times)
