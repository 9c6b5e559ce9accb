"""Measurements of a project's latest runs.
A run that finishes normally writes its measurements. Of any other large record, only the tail is
read.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from scalable.files import open_regular, read_regular, write_private
from scalable.runs.calls import RecordedTasks
from scalable.runs.measurements import CallRecord, Measurements, NameSpan, measure
from scalable.runs.streams import (
    MEASUREMENTS_FILE,
    PLAN_FILE,
    RUN_FILE,
    decode_object,
    encode_row,
    number,
    stream_path,
)

logger = logging.getLogger("scalable.runs")

#: Maximum number of runs of the project to read, and of runs of any project to examine.
RUNS, LOOKED_AT = 20, 200
#: Version of the file with measurements; files of other versions are not used.
VERSION = 2
#: Number of tasks, over all runs, after which no further run is read.
CALLS = 50_000
#: Streams from which the measurements of a run come.
MEASURED = ("tasks", "workers", "remembered")
#: Maximum number of bytes to read about tasks: of all runs together, and of each run.
BYTES, BYTES_OF_A_RUN = 12_000_000, 3_000_000


@dataclass(frozen=True)
class EarlierRun:
    """Measurements of one run."""

    run_id: str
    target: str
    status: str
    #: Successful tasks in finishing order. For large runs a random sample per name, or the last
    #: ones of an unfinished record.
    calls: tuple[CallRecord, ...] = ()
    #: True if the other values come from all tasks of the run.
    whole: bool = True
    #: Successful tasks and cache hits by (tag, name). A run with an empty cache executes the hits.
    counts: Mapping[tuple[str, str], int] = field(default_factory=dict)
    #: Time spans by (tag, name), if the whole run was read and no tasks came in bundles.
    spans: Mapping[tuple[str, str], NameSpan] = field(default_factory=dict)
    #: Pairs of a tag and the seconds from the request of a worker until it connected.
    startups_s: tuple[tuple[str, float], ...] = ()
    #: Seconds from the start-up to the last finish, or None if only a part of the run was read.
    span_s: float | None = None
    #: Predicted time of the run's plan. None if the plan guessed counts or durations, or cache hits
    #: were unexpected: such runs do not show how good predictions are.
    predicted_s: float | None = None
    overhead: float = 1.0
    provider: str = ""


def read_history(runs_dir: str | os.PathLike[str], project: str) -> list[EarlierRun]:
    """Return a project's latest measurements, the latest run first. Unreadable runs are skipped."""
    found: list[EarlierRun] = []
    left, calls = BYTES, 0
    for directory in _latest(Path(runs_dir)):
        if len(found) == RUNS or left <= 0 or calls >= CALLS:
            break
        try:
            run = decode_object(read_regular(directory / RUN_FILE))
            if run is None:
                logger.debug("run %s is ignored: its %s is invalid", directory.name, RUN_FILE)
                continue  # `scalable runs` names it; each later run would say it again
            if run.get("project") != project:
                continue
            measured, size = _measurements(directory, min(left, BYTES_OF_A_RUN))
            left -= size
            calls += len(measured.calls)
            found.append(_earlier_run(directory, run, measured))
        except OSError as error:
            logger.debug("run %s is ignored: %s", directory.name, error)
    return found


def _latest(runs_dir: Path) -> list[Path]:
    """Return the directories of the latest runs, ordered by the times in their names."""
    try:
        with os.scandir(runs_dir) as entries:
            names = [entry.name for entry in entries if entry.name.startswith("run-")]
    except OSError:
        return []
    return [runs_dir / name for name in sorted(names, reverse=True)[:LOOKED_AT]]


def _tail(path: Path, most: int) -> tuple[list[dict[str, Any]], bool, int]:
    """Return the last rows of a file, whether they are all its rows, and their size in bytes."""
    try:
        file = open_regular(path)
    except FileNotFoundError:
        return [], True, 0
    with file:
        size = file.seek(0, os.SEEK_END)
        begin = max(0, size - most)
        file.seek(begin)
        lines = file.read(most).split(b"\n")
    if begin:
        del lines[0]  # incomplete
    rows = (decode_object(line) for line in lines)
    return [row for row in rows if row is not None], not begin, size - begin


def _measurements(directory: Path, most: int) -> tuple[Measurements, int]:
    """Return a run's measurements, from their file or its last rows, and the bytes read."""
    written = _written(directory)
    if written is not None:
        return written
    rows, whole, size = _tail(stream_path(directory, "tasks"), most)
    workers, _, _ = _tail(stream_path(directory, "workers"), BYTES_OF_A_RUN)
    remembered, _, _ = _tail(stream_path(directory, "remembered"), BYTES_OF_A_RUN)
    return measure(RecordedTasks(rows), workers, remembered, whole=whole), size


def _written(directory: Path) -> tuple[Measurements, int] | None:
    """Return the written measurements of a run, or None if they are invalid or outdated."""
    data = _read(directory / MEASUREMENTS_FILE)
    told = data[_BEGIN:_END]
    values = decode_object(told) if data == _sealed(told) else None
    if values is None or values["version"] != VERSION or values["sizes"] != _sizes(directory):
        return None
    return Measurements.from_dict(values), len(data)


def write_measurements(directory: Path, measured: Measurements, sizes: Mapping[str, int]) -> None:
    """Write a run's measurements for plans, valid while its streams have ``sizes`` in bytes."""
    values = {"version": VERSION, "sizes": dict(sizes), **measured.to_dict()}
    sealed = _sealed(encode_row(values).encode())
    write_private(directory / MEASUREMENTS_FILE, sealed.decode())


def _sealed(values: bytes) -> bytes:
    """Return JSON values with their digest, so that damage is detected."""
    return b'{"sha256":"%s","measured":%s}\n' % (sha256(values).hexdigest().encode(), values)


#: Slice of a sealed file that contains the values.
_BEGIN, _END = len(_sealed(b"")) - 2, -2


def _sizes(directory: Path) -> dict[str, int]:
    return {stream: _size(stream_path(directory, stream)) for stream in MEASURED}


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _earlier_run(directory: Path, run: Mapping[str, Any], measured: Measurements) -> EarlierRun:
    plan = decode_object(_read(directory / PLAN_FILE)) or {}
    guessed = _guessed(plan) or measured.has_hits
    predicted = None if guessed else number(plan.get("predicted_time_s"))
    usual = number(plan.get("overhead"))
    return EarlierRun(
        run_id=directory.name,
        target=str(run.get("target")),
        status=str(run.get("status")),
        calls=measured.calls,
        whole=measured.whole,
        counts=measured.counts,
        spans=measured.spans,
        startups_s=measured.startups_s,
        span_s=measured.span_s,
        predicted_s=predicted if predicted is not None and predicted > 0 else None,
        overhead=usual if usual is not None and usual > 0 else 1.0,
        provider=str(run.get("provider") or ""),
    )


def _guessed(plan: Mapping[str, Any]) -> bool:
    tasks = plan.get("tasks")
    rows = tasks.values() if isinstance(tasks, Mapping) else ()
    return any(
        isinstance(row, Mapping) and "guess" in (row.get("counted"), row.get("source"))
        for row in rows
    )


def _read(path: Path) -> bytes:
    try:
        return read_regular(path)
    except FileNotFoundError:
        return b""
