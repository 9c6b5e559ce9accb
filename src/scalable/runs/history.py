"""Measurements of a project's latest runs: the written ones, or those of a record's last rows."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from scalable.errors import RunError
from scalable.files import read_regular, write_private
from scalable.runs.calls import RecordedTasks
from scalable.runs.measurements import Measurements, measure
from scalable.runs.streams import (
    MEASUREMENTS_FILE,
    PLAN_FILE,
    RUN_FILE,
    StoredRows,
    decode_object,
    encode_row,
    mapping,
    number,
    read_or_empty,
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


@dataclass(frozen=True, kw_only=True)
class EarlierRun(Measurements):
    """One run with its measurements."""

    run_id: str
    target: str
    status: str
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
        except (OSError, RunError) as error:
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


def _tail(path: Path, most: int) -> tuple[StoredRows, bool, int]:
    """Return the last rows of a file, whether they are all its rows, and their size in bytes."""
    size = _size(path)
    begin = max(0, size - most)
    return StoredRows(path, begin), not begin, size - begin


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
    data = read_or_empty(directory / MEASUREMENTS_FILE)
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
    return path.stat().st_size if path.exists() else 0


def _earlier_run(directory: Path, run: Mapping[str, Any], measured: Measurements) -> EarlierRun:
    plan = decode_object(read_or_empty(directory / PLAN_FILE)) or {}
    tasks = map(mapping, mapping(plan.get("tasks")).values())
    guessed = any("guess" in (task.get("counted"), task.get("source")) for task in tasks)
    predicted, overhead = (number(plan.get(key)) for key in ("predicted_time_s", "overhead"))
    return EarlierRun(
        **vars(measured),
        run_id=directory.name,
        target=str(run.get("target")),
        status=str(run.get("status")),
        predicted_s=None if guessed or measured.has_hits or (predicted or 0) <= 0 else predicted,
        overhead=overhead if overhead is not None and overhead > 0 else 1.0,
        provider=str(run.get("provider") or ""),
    )
