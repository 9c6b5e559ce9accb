"""Read a run, whole or as it grows; a crash of its writer costs a line, never the run."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scalable.errors import RunError
from scalable.liveness import process_gone
from scalable.telemetry.streams import (
    LOCK_FILE,
    PLAN_FILE,
    RUN_FILE,
    STREAMS,
    decode_object,
    read_rows,
    stream_path,
)

Row = dict[str, Any]


@dataclass(frozen=True)
class RunRecord:
    """A run as it was recorded.

    Attributes
    ----------
    path
        The run's directory.
    run
        Contents of run.json.
    status
        ``running``, ``completed``, ``failed``, ``cancelled``, or ``interrupted``: run.json says
        running, and its process is gone.
    tasks
        Rows of tasks.jsonl, one for each change of state: task_id, task_name, tag, worker, state
        (submitted, running, succeeded, failed, cancelled), timestamp; on final rows also
        queued_s, duration_s, transfer_s, cpu_s (seconds), peak_memory, nbytes (of its result) and
        input_bytes (of the results that it takes; 0 for none), each of which may be null. The last
        row of a bundle of calls has ``calls``: count, failed, total_s and quantiles_s (share ->
        seconds).
        Timestamps are epoch seconds, here and below.
    workers
        Rows of workers.jsonl: event (requested, started, removed), worker, tag, timestamp, reason.
    resources
        Rows of resources.jsonl: timestamp, worker, tag, cpu_percent, memory, limit (bytes).
    failures
        Rows of failures.jsonl: failure_class, message, timestamp, details (phase, task_id, worker,
        traceback).
    scaling
        Rows of scaling.jsonl: timestamp, tag, action (scale-up, scale-down), from, to, reason,
        source.
    artifacts
        Rows of artifacts.jsonl: name, path or uri, kind, timestamp, metadata, bytes, sha256.
    plan
        Contents of plan.json; empty where it is missing.
    manifest_lock
        Contents of manifest.lock; empty where it is missing.
    malformed_lines
        Lines of the streams that could not be read, torn last lines aside.
    """

    path: Path
    run: Row
    status: str
    tasks: list[Row] = field(default_factory=list)
    workers: list[Row] = field(default_factory=list)
    resources: list[Row] = field(default_factory=list)
    failures: list[Row] = field(default_factory=list)
    scaling: list[Row] = field(default_factory=list)
    artifacts: list[Row] = field(default_factory=list)
    plan: Row = field(default_factory=dict)
    manifest_lock: str = ""
    malformed_lines: int = 0


def read_run(path: str | os.PathLike[str]) -> RunRecord:
    """Read what was recorded of a run.

    Parameters
    ----------
    path
        The run's directory.

    Returns
    -------
    RunRecord
        Whatever can be read: torn last lines, lines that are not JSON objects and missing files
        other than run.json are passed over.

    Raises
    ------
    RunError
        When run.json is missing or not JSON, or a file may not be read.
    """
    directory = Path(path)
    try:
        run, status = _read_status(directory)
        with _uncollected():
            streams = {stream: read_rows(stream_path(directory, stream)) for stream in STREAMS}
        return RunRecord(
            path=directory,
            run=run,
            status=status,
            plan=decode_object(_read(directory / PLAN_FILE)) or {},
            manifest_lock=_read(directory / LOCK_FILE).decode(errors="replace").strip(),
            malformed_lines=sum(malformed for _, malformed in streams.values()),
            **{stream: rows for stream, (rows, _) in streams.items()},
        )
    except OSError as error:
        raise RunError(f"the run in {directory} cannot be read: {error}") from error


@contextmanager
def _uncollected() -> Iterator[None]:
    """Pause the garbage collector: none of the rows is garbage, and looking costs half the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class RunTail:
    """Follows a run while it goes on.

    Parameters
    ----------
    path
        The run's directory; its streams may appear later.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._directory = Path(path)
        self._offsets = dict.fromkeys(STREAMS, 0)

    def poll(self) -> dict[str, list[Row]]:
        """Read what was written since the last poll.

        Returns
        -------
        dict
            Every stream -> its new rows. A line that is still being written comes whole with a
            later poll; one that is no JSON object is passed over.
        """
        return {stream: self._poll(stream) for stream in STREAMS}

    def _poll(self, stream: str) -> list[Row]:
        try:
            with stream_path(self._directory, stream).open("rb") as file:
                file.seek(self._offsets[stream])
                data = file.read()
        except OSError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._offsets[stream] += len(whole)
        rows = (decode_object(line) for line in whole.split(b"\n"))
        return [row for row in rows if row is not None]


def _read_status(directory: Path) -> tuple[Row, str]:
    run = _read_run_file(directory)
    if run.get("status") == "running" and process_gone(run, _last_write(directory), time.time()):
        # It may have closed the run between our reading and its end.
        run = _read_run_file(directory)
        if run.get("status") == "running":
            return run, "interrupted"
    return run, str(run.get("status"))


def _read_run_file(directory: Path) -> Row:
    data = _read(directory / RUN_FILE)
    run = decode_object(data)
    if run is None:
        fault = "holds no JSON object" if data else "is missing or empty"
        raise RunError(
            f"{directory} is not a recorded run: its {RUN_FILE} {fault}",
            hint="name the directory of one run, run-<time>-<project>-<hash>",
        )
    return run


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return b""


def _last_write(directory: Path) -> float:
    times = [directory.stat().st_mtime]
    for stream in STREAMS:
        try:
            times.append(stream_path(directory, stream).stat().st_mtime)
        except FileNotFoundError:
            continue
    return max(times)
