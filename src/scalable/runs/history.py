"""Measurements of runs for the next plan: the written ones, or those of a record's last rows."""

from __future__ import annotations

import logging
import os
import random
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from math import isfinite, isnan
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple, Self

from scalable.errors import RunError
from scalable.files import read_regular, write_private
from scalable.runs.calls import RecordedTasks, outcomes_in, presences
from scalable.runs.streams import (
    MEASUREMENTS_FILE,
    PLAN_FILE,
    RUN_FILE,
    Row,
    StoredRows,
    decode_object,
    encode_row,
    mapping,
    number,
    read_or_empty,
    stream_path,
)

logger = logging.getLogger("scalable.runs")

# Measurements of one run --------------------------------------------------------------------------

#: Maximum number of tasks that a large run keeps for plans: of one name (as many as a task model
#: keeps), of all names together, and of each of very many names.
CALLS_OF_A_TASK, CALLS_OF_A_RUN, LEAST_CALLS_OF_A_TASK = 1000, 2000, 50
#: Longer running times, in seconds, come from damaged records: this is 30 years.
LONGEST_CALL_S = 1e9
#: Two workers' times count as equal if they differ by less than this part of the name's span.
_SAME_MOMENT = 0.02


class CallRecord(NamedTuple):
    """Running seconds of a successful task, and bytes of its memory and input (None: unknown)."""

    tag: str
    task: str
    duration_s: float
    memory: int | None = None
    input_bytes: int | None = None


class NameSpan(NamedTuple):
    """Start of the first and finish of the last task of a name, in epoch seconds."""

    begin: float
    end: float

    def overlaps(self, earlier: NameSpan) -> bool:
        """Return whether the first task started before all tasks of an earlier name finished."""
        # Clocks of workers differ a little.
        return self.begin < earlier.end - _SAME_MOMENT * (earlier.end - earlier.begin)


#: Tag and name of a task.
_Task = tuple[str, str]


@dataclass(frozen=True)
class Measurements:
    """Measurements of one run."""

    #: Successful tasks in finishing order. For large runs a random sample per name.
    calls: tuple[CallRecord, ...] = ()
    #: True if the other values come from all tasks of the run, not from its last rows.
    whole: bool = True
    #: Successful tasks and cache hits by (tag, name). A run with an empty cache executes the hits.
    counts: Mapping[_Task, int] = field(default_factory=dict)
    #: Time spans by (tag, name), if the whole run was read and no tasks came in bundles.
    spans: Mapping[_Task, NameSpan] = field(default_factory=dict)
    #: Pairs of a tag and the seconds from the request of a worker until it connected.
    startups_s: tuple[tuple[str, float], ...] = ()
    #: Seconds from the start-up to the last finish, or None if only a part of the run was read.
    span_s: float | None = None
    #: True if cached results of tasks were found.
    has_hits: bool = False

    def to_dict(self) -> dict[str, Any]:
        counts = [[*task, count] for task, count in self.counts.items()]
        spans = [[*task, *span] for task, span in self.spans.items()]
        return {**vars(self), "counts": counts, "spans": spans}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        decoded = {
            "calls": tuple(CallRecord(*each) for each in values["calls"]),
            "counts": {(tag, task): count for tag, task, count in values["counts"]},
            "spans": {(tag, task): NameSpan(*span) for tag, task, *span in values["spans"]},
            "startups_s": tuple(map(tuple, values["startups_s"])),
        }
        return cls(**{**values, **decoded})


def measure(
    calls: RecordedTasks,
    workers: Iterable[Row],
    remembered: Iterable[Row],
    *,
    whole: bool = True,
) -> Measurements:
    """Return the measurements of a run. ``whole`` is True if ``calls`` has all of its tasks.
    Of many tasks a random sample is kept, since the last tasks are often the longest.
    """
    tasks = {(tag, name): own for (tag, name), own in calls.succeeded().items() if tag is not None}
    most = max(LEAST_CALLS_OF_A_TASK, CALLS_OF_A_RUN // max(1, len(tasks)))
    most = min(most, CALLS_OF_A_TASK)
    chance = random.Random(0)  # noqa: S311 - a sample, the same each time
    counts: Counter[_Task] = Counter()
    spans: dict[_Task, NameSpan] = {}
    kept: list[tuple[float, CallRecord]] = []
    for task, own in tasks.items():
        numbers, durations = array("i"), array("d")
        for call in own:
            for duration in calls.durations(call):
                if 0 <= duration <= LONGEST_CALL_S:
                    numbers.append(call)
                    durations.append(duration)
        if durations:
            counts[task] = len(durations)
        places: Sequence[int] = range(len(durations))
        if len(places) > most:
            places = sorted(chance.sample(places, most))
        for place in places:
            call, of = numbers[place], calls.measurements
            sizes = (of[key][call] for key in ("peak_memory", "input_bytes"))
            known = (None if isnan(size) else int(size) for size in sizes)
            kept.append((calls.ended[call], CallRecord(*task, durations[place], *known)))
        if whole and not calls.bundles.keys() & set(own):
            ends = [calls.ended[call] for call in numbers]
            begins = [end - duration for end, duration in zip(ends, durations, strict=True)]
            if isfinite(sum(ends)) and ends:
                spans[task] = NameSpan(min(begins), max(ends))
    hits = [(tag or "", name, o.count) for name, tag, o in outcomes_in(remembered) if o.is_hit]
    for tag, name, count in hits:
        counts[tag, name] += count
    return Measurements(
        calls=tuple(call for _, call in sorted(kept, key=itemgetter(0))),
        whole=whole,
        counts=counts,
        spans=spans,
        startups_s=tuple(
            (each.tag, max(0.0, each.begin - each.requested))
            for each in presences(workers)
            if each.requested is not None
        ),
        span_s=sum(parts) if whole and (parts := calls.work_parts(workers)) else None,
        has_hits=bool(hits),
    )


# Earlier runs -------------------------------------------------------------------------------------

#: Maximum number of runs of the project to read, and of runs of any project to examine.
RUNS, LOOKED_AT = 20, 200
#: Version of the file with measurements; files of other versions are not used.
VERSION = 4
#: Number of tasks, over all runs, after which no further run is read.
CALLS = 50_000
#: Streams from which the measurements of a run come.
MEASURED = ("tasks", "workers", "remembered")
#: Maximum number of bytes to read about tasks: of all runs together, and of each run.
BYTES, BYTES_OF_A_RUN = 12_000_000, 3_000_000


@dataclass(frozen=True, kw_only=True)
class EarlierRun(Measurements):
    """One run with its measurements."""

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
    # The names of runs begin with their times.
    for directory in sorted(Path(runs_dir).glob("run-*"), reverse=True)[:LOOKED_AT]:
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


def _last_rows(directory: Path, stream: str, most: int = BYTES_OF_A_RUN) -> StoredRows:
    return StoredRows(directory, stream, max(0, _size(directory, stream) - most))


#: Measurements of finished runs that are not written in their records, with the sizes of the
#: streams. They were found by plans of this process, which write nothing.
_found: dict[Path, tuple[Measurements, Mapping[str, int], int]] = {}


def keep_found(runs_dir: Path) -> None:
    """Write what plans of this process have found out about a directory of runs."""
    for directory in list(_found):
        if directory.parent.absolute() == runs_dir and (found := _found.pop(directory, None)):
            with suppress(OSError):
                write_measurements(directory, *found[:2])


def _measurements(directory: Path, most: int) -> tuple[Measurements, int]:
    """Return a run's measurements, from their file or its last rows, and the bytes read."""
    written, sizes = _written(directory), _sizes(directory)
    if written is not None:
        return written
    measured, of, read = _found.get(directory, (None, None, 0))
    if measured is not None and of == sizes:
        return measured, read
    from scalable.runs.reading import read_status  # loads psutil, which few plans need

    rows = _last_rows(directory, "tasks", most)
    whole, others = not rows.begin, (_last_rows(directory, s) for s in MEASURED[1:])
    measured = measure(RecordedTasks(rows), *others, whole=whole)
    read = rows.size - rows.begin
    if (whole or most == BYTES_OF_A_RUN) and read_status(directory)[1] != "running":
        _found[directory] = measured, sizes, read
    return measured, read


def _written(directory: Path) -> tuple[Measurements, int] | None:
    """Return the written measurements of a run, or None if they are invalid or outdated."""
    data = read_or_empty(directory / MEASUREMENTS_FILE)
    told = data[_BEGIN:_END]
    values = decode_object(told) if data == _sealed(told) else None
    if values is None or values["version"] != VERSION or values["sizes"] != _sizes(directory):
        return None
    return Measurements.from_dict(values["of"]), len(data)


def write_measurements(directory: Path, measured: Measurements, sizes: Mapping[str, int]) -> None:
    """Write a run's measurements for plans, valid while its streams have ``sizes`` in bytes."""
    values = {"version": VERSION, "sizes": dict(sizes), "of": measured.to_dict()}
    sealed = _sealed(encode_row(values).encode())
    write_private(directory / MEASUREMENTS_FILE, sealed.decode())


def _sealed(values: bytes) -> bytes:
    """Return JSON values with their digest, so that damage is detected."""
    return b'{"sha256":"%s","measured":%s}\n' % (sha256(values).hexdigest().encode(), values)


#: Slice of a sealed file that contains the values.
_BEGIN, _END = len(_sealed(b"")) - 2, -2


def _sizes(directory: Path) -> dict[str, int]:
    return {stream: _size(directory, stream) for stream in MEASURED}


def _size(directory: Path, stream: str) -> int:
    path = stream_path(directory, stream)
    return path.stat().st_size if path.exists() else 0


def _earlier_run(directory: Path, run: Mapping[str, Any], measured: Measurements) -> EarlierRun:
    plan = decode_object(read_or_empty(directory / PLAN_FILE)) or {}
    tasks = map(mapping, mapping(plan.get("tasks")).values())
    guessed = any("guess" in (task.get("counted"), task.get("source")) for task in tasks)
    predicted, overhead = (number(plan.get(key)) for key in ("predicted_time_s", "overhead"))
    return EarlierRun(
        **vars(measured),
        target=str(run.get("target")),
        status=str(run.get("status")),
        predicted_s=None if guessed or measured.has_hits or (predicted or 0) <= 0 else predicted,
        overhead=overhead if overhead is not None and overhead > 0 else 1.0,
        provider=str(run.get("provider") or ""),
    )
