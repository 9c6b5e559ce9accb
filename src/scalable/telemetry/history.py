"""Measurements of the latest runs of a project; only the end of a large record is read."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from scalable.telemetry.bundled import each_call
from scalable.telemetry.remembered import outcomes_in
from scalable.telemetry.streams import PLAN_FILE, RUN_FILE, decode_object, stream_path

logger = logging.getLogger("scalable.telemetry")

#: Maximum number of runs of the project to read, and of runs of any project to examine.
RUNS, LOOKED_AT = 20, 200
#: Maximum number of bytes to read from tasks.jsonl: of all runs together, and of each run.
BYTES, BYTES_OF_A_RUN = 12_000_000, 3_000_000
#: Running times that are longer, in seconds, come from damaged records: they are 30 years.
LONGEST_CALL_S = 1e9
#: All numbers of records are less than this; others are ignored.
MOST = 1e18
#: Maximum number of characters of a kind of machine; longer ones are ignored.
LONGEST_KIND = 200
#: Share of the length of a task by which times of different workers count as equal.
_SAME_MOMENT = 0.02


class CallRecord(NamedTuple):
    """Successful call: seconds, bytes of memory and input (None if unknown), kind of machine.

    The kind of machine (see :mod:`scalable.protocol.machine_kind`) is empty if it is unknown.
    """

    tag: str
    task: str
    duration_s: float
    memory: int | None = None
    input_bytes: int | None = None
    machine: str = ""


class Span(NamedTuple):
    """Begin of the first and end of the last call of a task, in seconds since 1970."""

    begin: float
    end: float

    def overlaps(self, earlier: Span) -> bool:
        """Return whether the first call began before all calls of an earlier task had ended."""
        # Clocks of workers differ a little.
        return self.begin < earlier.end - _SAME_MOMENT * (earlier.end - earlier.begin)


@dataclass(frozen=True)
class EarlierRun:
    """Measurements of one run.

    Attributes
    ----------
    run_id, target, status
        Values of run.json.
    calls
        Successful calls in the order in which they ended; only the last calls of a large run.
    whole
        Whether ``calls`` contains all successful calls.
    counts
        (tag, task) -> number of its calls in ``calls``, and of those whose remembered results were
        found: an empty store would have had them run.
    spans
        (tag, task) -> its :class:`Span`, if the whole run was read and no calls came in bundles.
    startups_s
        Pairs of a tag and the seconds from the request of a worker until it connected.
    span_s
        Result of :func:`work_span_s`; None if only a part of the run was read.
    predicted_s, overhead
        Predicted time and overhead from the run's plan, see :class:`scalable.spec.Plan`. The time
        is None if the plan predicted no time, or guessed the number or length of a task's calls: a
        guess does not show how good predictions are. Nor does a run that found results of calls
        which the plan expected to run.
    provider
        Provider in run.json; empty if it is not known.
    transferred
        Share of the work whose running times the plan took from other targets.
    """

    run_id: str
    target: str
    status: str
    calls: tuple[CallRecord, ...] = ()
    whole: bool = True
    counts: Mapping[tuple[str, str], int] = field(default_factory=dict)
    spans: Mapping[tuple[str, str], Span] = field(default_factory=dict)
    startups_s: tuple[tuple[str, float], ...] = ()
    span_s: float | None = None
    predicted_s: float | None = None
    overhead: float = 1.0
    provider: str = ""
    transferred: float = 0.0


def read_history(runs_dir: str | os.PathLike[str], project: str) -> list[EarlierRun]:
    """Return the measurements of a project's latest runs, the latest run first.

    An unreadable run is skipped with a warning.

    Parameters
    ----------
    runs_dir
        Directory that contains the runs; it may be missing.
    project
        Name of the project.
    """
    found: list[EarlierRun] = []
    left = BYTES
    for directory in _latest(Path(runs_dir)):
        if len(found) == RUNS or left <= 0:
            break
        try:
            run = decode_object((directory / RUN_FILE).read_bytes())
            if run is None:
                logger.warning(
                    "run %s is ignored: its %s is not a JSON object", directory.name, RUN_FILE
                )
                continue
            if run.get("project") != project:
                continue
            rows, whole, size = _tail(stream_path(directory, "tasks"), min(left, BYTES_OF_A_RUN))
            left -= size
            found.append(_earlier_run(directory, run, rows, whole=whole))
        except OSError as error:
            logger.warning(
                "run %s is ignored, because its calls cannot be read: %s", directory.name, error
            )
    return found


def _latest(runs_dir: Path) -> list[Path]:
    """Return the directories of the latest runs, ordered by the time in their names."""
    try:
        with os.scandir(runs_dir) as entries:
            names = [entry.name for entry in entries if entry.name.startswith("run-")]
    except OSError:
        return []
    return [runs_dir / name for name in sorted(names, reverse=True)[:LOOKED_AT]]


def _tail(path: Path, most: int) -> tuple[list[dict[str, Any]], bool, int]:
    """Return the last rows of a file, whether these are all its rows, and their size in bytes."""
    try:
        file = path.open("rb")
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


def _earlier_run(
    directory: Path, run: Mapping[str, Any], rows: Iterable[Mapping[str, Any]], *, whole: bool
) -> EarlierRun:
    rows = list(rows)
    workers, _, _ = _tail(stream_path(directory, "workers"), BYTES_OF_A_RUN)
    machines = _machines(workers)
    found = (_call(row, machines) for row in each_call(rows) if row.get("state") == "succeeded")
    calls = [call for call in found if call is not None]
    plan = decode_object(_read(directory / PLAN_FILE)) or {}
    found_rows, _, _ = _tail(stream_path(directory, "remembered"), BYTES_OF_A_RUN)
    hits = [(tag or "", name, o.count) for name, tag, o in outcomes_in(found_rows) if o.is_hit]
    counts = Counter((call.tag, call.task) for call in calls)
    for tag, name, count in hits:
        counts[tag, name] += count
    guessed = _guessed(plan) or bool(hits)
    predicted = None if guessed else _number(plan.get("predicted_time_s"))
    usual = _number(plan.get("overhead"))
    return EarlierRun(
        run_id=directory.name,
        target=str(run.get("target")),
        status=str(run.get("status")),
        calls=tuple(calls),
        whole=whole,
        counts=counts,
        spans=_spans(rows) if whole else {},
        startups_s=tuple(_startups(workers)),
        span_s=work_span_s(rows, workers) if whole else None,
        predicted_s=predicted if predicted is not None and predicted > 0 else None,
        overhead=usual if usual is not None and usual > 0 else 1.0,
        provider=str(run.get("provider") or ""),
        transferred=_number(plan.get("transferred")) or 0.0,
    )


def work_span_s(
    tasks: Iterable[Mapping[str, Any]], workers: Iterable[Mapping[str, Any]]
) -> float | None:
    """Return the seconds in which a run did all its calls, or None without calls.

    The time is from the submission of the first call to the end of the last call. If workers were
    requested before the first call, the start-up time of the first worker is added.

    Parameters
    ----------
    tasks, workers
        Rows of tasks.jsonl and of workers.jsonl.
    """
    moments: dict[str, list[float]] = {"submitted": [], "ended": [], "requested": [], "started": []}
    for row in tasks:
        state, moment = row.get("state"), _number(row.get("timestamp"))
        place = "ended" if state in ("succeeded", "failed") else state
        if moment is not None and place in ("submitted", "ended"):
            moments[place].append(moment)
    for row in workers:
        event, moment = row.get("event"), _number(row.get("timestamp"))
        if moment is not None and event in ("requested", "started"):
            moments[event].append(moment)
    if not moments["submitted"] or not moments["ended"]:
        return None
    begin = min(moments["submitted"])
    started = min(moments["started"], default=begin)
    before = max(0.0, min(started, begin) - min(moments["requested"], default=begin))
    return max(0.0, max(moments["ended"]) - begin) + before


def _guessed(plan: Mapping[str, Any]) -> bool:
    tasks = plan.get("tasks")
    rows = tasks.values() if isinstance(tasks, Mapping) else ()
    return any(
        isinstance(row, Mapping) and "guess" in (row.get("counted"), row.get("source"))
        for row in rows
    )


def _machines(workers: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return worker -> kind of its machine, for workers that told it."""
    return {
        worker: kind
        for row in workers
        if isinstance(kind := row.get("machine"), str)
        and len(kind) <= LONGEST_KIND
        and isinstance(worker := row.get("worker"), str)
    }


def _call(row: Mapping[str, Any], machines: Mapping[str, str]) -> CallRecord | None:
    tag, task, duration = row.get("tag"), row.get("task_name"), _number(row.get("duration_s"))
    if not isinstance(tag, str) or not isinstance(task, str):
        return None
    if duration is None or not 0 <= duration <= LONGEST_CALL_S:
        return None
    memory, size = _number(row.get("peak_memory")), _number(row.get("input_bytes"))
    return CallRecord(
        tag,
        task,
        duration,
        None if memory is None else int(memory),
        None if size is None else int(size),
        machines.get(str(row.get("worker")), ""),
    )


def _spans(rows: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], Span]:
    found: dict[tuple[str, str], Span] = {}
    bundled = set()
    for row in rows:
        tag, task, end = row.get("tag"), row.get("task_name"), _number(row.get("timestamp"))
        if row.get("state") != "succeeded" or not isinstance(tag, str) or not isinstance(task, str):
            continue
        if row.get("calls") is not None:
            bundled.add((tag, task))
        length = _number(row.get("duration_s"))
        if end is None or length is None:
            continue
        known = found.get((tag, task), Span(end, end))
        found[tag, task] = Span(min(known.begin, end - length), max(known.end, end))
    return {key: span for key, span in found.items() if key not in bundled}


def _startups(rows: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, float]]:
    asked: dict[str, float] = {}
    for row in rows:
        worker, tag, moment = row.get("worker"), row.get("tag"), _number(row.get("timestamp"))
        if not isinstance(worker, str) or not isinstance(tag, str) or moment is None:
            continue
        if row.get("event") == "requested":
            asked.setdefault(worker, moment)
        elif row.get("event") == "started" and worker in asked:
            yield tag, max(0.0, moment - asked.pop(worker))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if -MOST < value < MOST else None
