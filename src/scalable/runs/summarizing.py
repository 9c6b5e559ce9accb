"""Summaries of runs, computed from their records. Incomplete rows are tolerated. Does no I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import chain
from typing import Any

from scalable.model.cache_outcomes import CacheTally, CacheTotals
from scalable.quantiles import Durations, Quantiles
from scalable.runs.calls import FOUND, RecordedTasks, number_in, outcomes_in
from scalable.runs.failed import FailedRow, failed_rows, text_or_none
from scalable.runs.reading import RunRecord
from scalable.runs.streams import STREAMS
from scalable.runs.summary import (
    BILLED,
    FailureClass,
    FailureSummary,
    PoolSummary,
    ScalingSummary,
    Summary,
    TaskNameSummary,
    cost_of,
)

#: Reason in the ``removed`` row of a worker that stayed until the session closed.
REASON_CLOSED = "closed"
#: First word of the reason in the ``removed`` row of a worker that was lost.
REASON_LOST = "lost"
#: Tag that stands for rows without a tag.
NO_TAG = "(no tag)"

_STATES = ("succeeded", "failed", "cancelled", FOUND, "running", "submitted")


def summarize(record: RunRecord) -> Summary:
    """Return the summary of a run. Rows without the required keys are skipped."""
    return summary_of(record, RecordedTasks(record.tasks))


def summary_of(record: RunRecord, calls: RecordedTasks) -> Summary:
    """Return the summary of a run from its record and its already collected tasks."""
    run = record.run
    found = _found(record.remembered)
    by_name = calls.by_name()
    of_names = {name: calls.states(numbers) for name, numbers in by_name.items()}
    states = sum(of_names.values(), Counter[str]())
    reruns = calls.reruns()
    if hits := sum(tags.total() for tags in found.values()):
        states[FOUND] = hits
    order = [state for state in _STATES if state in states]
    started, ended = text_or_none(run.get("started_at")), text_or_none(run.get("ended_at"))
    exit_code = run.get("exit_code")
    return Summary(
        run_id=text_or_none(run.get("run_id")) or record.path.name,
        project=text_or_none(run.get("project")) or "",
        target=text_or_none(run.get("target")) or "",
        provider=text_or_none(run.get("provider")) or "",
        status=record.status,
        started_at=started,
        ended_at=ended,
        duration_s=_duration(started, ended, record, calls),
        tasks={state: states[state] for state in [*order, *sorted(states.keys() - set(_STATES))]},
        task_names={
            name: _task_name(
                calls,
                by_name.get(name, ()),
                of_names.get(name, Counter()),
                found.get(name, Counter()),
            )
            for name in dict.fromkeys([*by_name, *found])
        },
        workers=_pools(record.workers),
        scaling=ScalingSummary(
            scale_up=sum(row.get("action") == "scale-up" for row in record.scaling),
            scale_down=sum(row.get("action") == "scale-down" for row in record.scaling),
        ),
        scaling_changes=tuple(record.scaling),
        failures=_failures(record.failures),
        cost=cost_of(record.workers, record.plan),
        artifacts=tuple(record.artifacts),
        reruns=tuple(reruns),
        rerun_reasons=dict(Counter(chain.from_iterable(reruns.values())).most_common()),
        remembered=totals_of(record.remembered),
        exit_code=exit_code if isinstance(exit_code, int) else None,
        error=text_or_none(run.get("error")),
        path=str(record.path),
        malformed_lines=record.malformed_lines,
    )


def _found(rows: Iterable[Mapping[str, Any]]) -> dict[str, Counter[str | None]]:
    """Map task names and tags to the number of cache hits."""
    found: dict[str, Counter[str | None]] = {}
    for name, tag, outcome in outcomes_in(rows):
        if outcome.is_hit:
            found.setdefault(name, Counter())[tag] += outcome.count
    return found


def _task_name(
    calls: RecordedTasks, numbers: Sequence[int], states: Counter[str], found: Counter[str | None]
) -> TaskNameSummary:
    cpu = calls.cpu_s(numbers)
    return TaskNameSummary(
        count=states.total(),
        failed=states["failed"],
        tags=tuple(sorted(calls.tags(numbers) | {*filter(None, found)})),
        duration_s=Durations.of(calls.durations_s(numbers)),
        queued_s=Quantiles.of(calls.queued_s(numbers)),
        peak_memory=Quantiles.of(calls.peak_memory(numbers)),
        cpu_s=sum(cpu) if cpu else None,
        found=found.total(),
    )


def _pools(rows: Iterable[Mapping[str, Any]]) -> dict[str, PoolSummary]:
    counts: dict[str, Counter[str]] = {}
    # A restarted worker keeps its name, so the workers present are updated after each row.
    present: dict[str, str] = {}
    reasons: dict[str, Counter[str]] = {}
    for row in rows:
        worker, event = row.get("worker"), row.get("event")
        if not isinstance(worker, str) or not isinstance(event, str) or event == BILLED:
            continue
        tag = present.get(worker) or text_or_none(row.get("tag")) or NO_TAG
        count = counts.setdefault(tag, Counter())
        if event == "requested":
            count["requested"] += 1
        elif event == "started" and worker not in present:
            present[worker] = tag
            count["started"] += 1
        elif event == "removed" and worker in present:
            del present[worker]
            reason = text_or_none(row.get("reason")) or ""
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
    counts: Counter[str] = Counter()
    first: dict[str, FailedRow] = {}
    for failed in failed_rows(rows):
        counts[failed.failure_class] += failed.count
        first.setdefault(failed.failure_class, failed)
    return FailureSummary(
        counts.total(),
        {
            name: FailureClass(
                count=count,
                message=first[name].message,
                frame=first[name].details.frame,
                task_id=first[name].task_id,
                arguments=first[name].details.arguments,
                worker=first[name].details.worker,
                tries=first[name].details.tries,
            )
            for name, count in counts.most_common()
        },
    )


def _duration(
    started: str | None, ended: str | None, record: RunRecord, calls: RecordedTasks
) -> float | None:
    start, end = _epoch(started), _epoch(ended)
    if end is None:
        others = (row for stream in STREAMS if stream != "tasks" for row in getattr(record, stream))
        moments = (calls.last_moment, *(number_in(row, "timestamp") for row in others))
        end = max((moment for moment in moments if moment is not None), default=None)
    return None if start is None or end is None else max(0.0, end - start)


def _epoch(moment: str | None) -> float | None:
    try:
        read = datetime.fromisoformat(moment or "")
    except ValueError:
        return None
    return (read if read.tzinfo else read.replace(tzinfo=UTC)).timestamp()


# Cached results -----------------------------------------------------------------------------------


def totals_of(rows: Iterable[Mapping[str, Any]]) -> CacheTotals:
    """Return the totals of the outcomes in rows of ``remembered.jsonl``."""
    tally = CacheTally()
    for name, _, outcome in outcomes_in(rows):
        tally.add(name, outcome)
    return tally.totals()
