"""Summaries of runs, computed from their records; incomplete rows are tolerated. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from scalable.quantiles import Durations, Quantiles
from scalable.telemetry.bundled import Bundled, bundled
from scalable.telemetry.costs import BILLED, cost_of
from scalable.telemetry.failed import FailedRow, failed_rows
from scalable.telemetry.reading import RunRecord
from scalable.telemetry.remembered import outcomes_in, totals_of
from scalable.telemetry.reruns import RERUN
from scalable.telemetry.streams import STREAMS
from scalable.telemetry.summary import (
    FailureClass,
    FailureSummary,
    PoolSummary,
    ScalingSummary,
    Summary,
    TaskNameSummary,
)

#: Reason in the ``removed`` row of a worker that stayed until the end of the session.
REASON_CLOSED = "closed"
#: First word of the reason in the ``removed`` row of a worker that ended unexpectedly.
REASON_LOST = "lost"
#: Tag that stands for rows without a tag.
NO_TAG = "(no tag)"

_FINAL_STATES = ("succeeded", "failed", "cancelled")
#: State of a call that did not run. Such calls are counted from the rows about outcomes, which tell
#: of those without a task, too.
_FOUND = "found"
_STATES = (*_FINAL_STATES, _FOUND, "running", "submitted")
# Largest number of calls that begin again with one row; larger numbers are taken for damage.
_MOST_REPEATS = 1_000_000
# Larger numbers cannot be measurements, and their sums would overflow.
_LARGEST = 1e300


@dataclass
class _Call:
    """Combined rows of one task_id, which is a call or a bundle of calls."""

    name: str = ""
    tags: set[str] = field(default_factory=set)
    starts: int = 0
    reruns: list[str] = field(default_factory=list)
    last: str = ""
    is_found: bool = False
    final: Mapping[str, Any] | None = None

    @property
    def state(self) -> str:
        return self.last if self.final is None else str(self.final["state"])

    @property
    def bundled(self) -> Bundled | None:
        """Calls of the bundle; None if the rows describe a single call."""
        return None if self.final is None else bundled(self.final)


def summarize(record: RunRecord) -> Summary:
    """Return the summary of a run; rows without the required keys are skipped.

    Parameters
    ----------
    record
        Record of the run.
    """
    run = record.run
    calls = _calls(record.tasks)
    found = _found(record.remembered)
    states = _states(calls.values())
    if hits := sum(tags.total() for tags in found.values()):
        states[_FOUND] = hits
    order = [state for state in _STATES if state in states]
    started, ended = _text(run.get("started_at")), _text(run.get("ended_at"))
    exit_code = run.get("exit_code")
    return Summary(
        run_id=_text(run.get("run_id")) or record.path.name,
        project=_text(run.get("project")) or "",
        target=_text(run.get("target")) or "",
        provider=_text(run.get("provider")) or "",
        status=record.status,
        started_at=started,
        ended_at=ended,
        duration_s=_duration(started, ended, record),
        tasks={state: states[state] for state in [*order, *sorted(states.keys() - set(_STATES))]},
        task_names=_task_names(calls.values(), found),
        workers=_pools(record.workers),
        scaling=ScalingSummary(
            scale_up=sum(row.get("action") == "scale-up" for row in record.scaling),
            scale_down=sum(row.get("action") == "scale-down" for row in record.scaling),
        ),
        scaling_changes=tuple(record.scaling),
        failures=_failures(record.failures),
        cost=cost_of(record.workers, record.plan),
        artifacts=tuple(record.artifacts),
        reruns=tuple(task_id for task_id, call in calls.items() if _reruns(call)),
        rerun_reasons=_rerun_reasons(calls.values()),
        remembered=totals_of(record.remembered),
        exit_code=exit_code if isinstance(exit_code, int) else None,
        error=_text(run.get("error")),
        path=str(record.path),
        malformed_lines=record.malformed_lines,
    )


def _calls(rows: Iterable[Mapping[str, Any]]) -> dict[str, _Call]:
    calls: dict[str, _Call] = {}
    for row in rows:
        task_id, state = row.get("task_id"), row.get("state")
        if not isinstance(task_id, str) or not isinstance(state, str):
            continue
        call = calls.get(task_id)
        if call is None:
            call = calls[task_id] = _Call(name=task_id)
        name, tag = row.get("task_name"), row.get("tag")
        if isinstance(name, str):
            call.name = name
        if isinstance(tag, str):
            call.tags.add(tag)
        if state == RERUN:
            reason, count = _text(row.get("reason")) or "reason not known", row.get("count")
            many = count if isinstance(count, int) and 0 < count < _MOST_REPEATS else 1
            call.reruns += [reason] * many
            continue
        call.last = state
        call.is_found = state == _FOUND
        call.starts += state == "running"
        if state in _FINAL_STATES:
            call.final = row
    return calls


def _reruns(call: _Call) -> list[str]:
    """Return the reason of each rerun of a call; runs before this version recorded only starts."""
    return call.reruns or ["reason not known"] * max(0, call.starts - 1)


def _rerun_reasons(calls: Iterable[_Call]) -> dict[str, int]:
    return dict(Counter(reason for call in calls for reason in _reruns(call)).most_common())


def _states(calls: Iterable[_Call]) -> Counter[str]:
    states: Counter[str] = Counter()
    for call in calls:
        many = call.bundled
        if call.is_found:
            continue
        if many is None:
            # A call of a lost bundle begins again, but ends with a later one.
            states[call.state] += bool(call.state)
        else:
            states["succeeded"] += many.calls - many.failed
            states["failed"] += many.failed
            states["cancelled"] += many.cancelled
    return +states


def _found(rows: Iterable[Mapping[str, Any]]) -> dict[str, Counter[str | None]]:
    """Return task name -> tag -> number of calls whose remembered results were found."""
    found: dict[str, Counter[str | None]] = {}
    for name, tag, outcome in outcomes_in(rows):
        if outcome.is_hit:
            found.setdefault(name, Counter())[tag] += outcome.count
    return found


def _task_names(
    calls: Iterable[_Call], found: Mapping[str, Counter[str | None]]
) -> dict[str, TaskNameSummary]:
    by_name: dict[str, list[_Call]] = {}
    for call in calls:
        by_name.setdefault(call.name, []).append(call)
    names = dict.fromkeys([*by_name, *found])
    return {name: _task_name(by_name.get(name, []), found.get(name, Counter())) for name in names}


def _task_name(calls: list[_Call], found: Counter[str | None]) -> TaskNameSummary:
    final = [call.final for call in calls if call.final is not None]
    cpu = _numbers(final, "cpu_s")
    states = _states(calls)
    return TaskNameSummary(
        count=states.total(),
        failed=states["failed"],
        tags=tuple(sorted({tag for call in calls for tag in call.tags} | {*filter(None, found)})),
        duration_s=Durations.of(_lengths(final)),
        queued_s=Quantiles.of(_numbers(final, "queued_s")),
        peak_memory=Quantiles.of(_numbers(final, "peak_memory")),
        cpu_s=sum(cpu) if cpu else None,
        found=found.total(),
    )


def _pools(rows: Iterable[Mapping[str, Any]]) -> dict[str, PoolSummary]:
    counts: dict[str, Counter[str]] = {}
    # A restarted worker keeps its name, so the code notes after each row which workers are present.
    present: dict[str, str] = {}
    reasons: dict[str, Counter[str]] = {}
    for row in rows:
        worker, event = row.get("worker"), row.get("event")
        if not isinstance(worker, str) or not isinstance(event, str) or event == BILLED:
            continue
        tag = present.get(worker) or _text(row.get("tag")) or NO_TAG
        count = counts.setdefault(tag, Counter())
        if event == "requested":
            count["requested"] += 1
        elif event == "started" and worker not in present:
            present[worker] = tag
            count["started"] += 1
        elif event == "removed" and worker in present:
            del present[worker]
            reason = _text(row.get("reason")) or ""
            count["removed"] += reason != REASON_CLOSED
            if reason.startswith(REASON_LOST):
                count["lost"] += 1
                why = reason.removeprefix(REASON_LOST).lstrip(": ") or "reason not known"
                reasons.setdefault(tag, Counter())[why] += 1
    return {
        tag: PoolSummary(
            started=count["started"],
            removed=count["removed"],
            final=count["started"] - count["removed"],
            requested=count["requested"],
            lost=count["lost"],
            lost_reasons=dict(reasons.get(tag, {})),
        )
        for tag, count in counts.items()
    }


def _failures(rows: Iterable[dict[str, Any]]) -> FailureSummary:
    classes: dict[str, list[FailedRow]] = {}
    for failed in failed_rows(rows):
        classes.setdefault(failed.failure_class, []).append(failed)
    counts = {name: sum(failed.count for failed in found) for name, found in classes.items()}
    return FailureSummary(
        sum(counts.values()),
        {
            name: FailureClass(
                count=counts[name],
                message=classes[name][0].message,
                frame=classes[name][0].details.frame,
                task_id=classes[name][0].task_id,
                arguments=classes[name][0].details.arguments,
                worker=classes[name][0].details.worker,
                tries=classes[name][0].details.tries,
            )
            for name in sorted(classes, key=lambda name: -counts[name])
        },
    )


def _duration(started: str | None, ended: str | None, record: RunRecord) -> float | None:
    start, end = _epoch(started), _epoch(ended)
    if end is None:
        rows = (row for stream in STREAMS for row in getattr(record, stream))
        end = max(_numbers(rows, "timestamp"), default=None)
    return None if start is None or end is None else max(0.0, end - start)


def _epoch(moment: str | None) -> float | None:
    try:
        read = datetime.fromisoformat(moment or "")
    except ValueError:
        return None
    return (read if read.tzinfo else read.replace(tzinfo=UTC)).timestamp()


def _lengths(rows: Iterable[Mapping[str, Any]]) -> list[float]:
    lengths: list[float] = []
    for row in rows:
        many = bundled(row)
        lengths += _numbers([row], "duration_s") if many is None else many.durations_s
    return lengths


def _numbers(rows: Iterable[Mapping[str, Any]], key: str) -> list[float]:
    return [value for row in rows if (value := _number(row.get(key))) is not None]


def _number(value: object) -> float | None:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    return value if -_LARGEST < value < _LARGEST else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
