"""The columns of a cluster's tables, for all displays, metrics and the report.

A column that is added to one of these listings appears in every display that the column names, by
default in all that show the listing.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

from scalable.harmless import one_line
from scalable.model.clusters import ClusterStatus
from scalable.model.costs import CURRENCY
from scalable.model.overview import (
    MEASUREMENTS,
    Events,
    Measurement,
    Overview,
    PoolOverview,
    TaskCounts,
    TaskOverview,
    WorkerOverview,
)
from scalable.quantiles import Quantiles
from scalable.units import counted, format_bytes, format_duration
from scalable.views.tables import BAR_STATES, DISPLAYS, REPORTS, Column, Listing, Table

#: Name of the pool without a tag, in left-to-right script, so that numbers stay in their columns.
UNTAGGED_NAME = "(no tag)"
#: Displays of what only the scheduler reports: a status comes from the managers.
LIVE = DISPLAYS - {"status"}
#: Displays of the tasks by name: the report shows those of a finished run.
LIVE_AND_REPORT = LIVE | {"report"}
#: Displays of the numbers of tasks.
COUNTED = LIVE_AND_REPORT | {"duration_s"}
#: Displays with room for what a terminal does not show.
WIDE = ("notebook", "page")
_MONEY = CURRENCY.lower()
_NUMBERS = re.compile(r"0x[0-9a-fA-F]+|\d+(?:\.\d+)?")


def _pool_column(tag: Callable[[Any], str | None]) -> Column:
    """Return the column with a row's pool."""
    return Column("pool", "pool", lambda row: tag(row) or "", width=24, help="Tag of the pool.",
                  text=lambda row: tag(row) or UNTAGGED_NAME)  # fmt: skip


# Pools --------------------------------------------------------------------------------------------


class PoolRow(NamedTuple):
    """A pool with its tag."""

    tag: str
    pool: PoolOverview

    @property
    def cost(self) -> Mapping[str, Any] | None:
        return self.pool.cost


def _count(field: str, metric: str, help_: str, **options: Any) -> Column:
    """Return a column with a number that the scheduler reports about a pool."""
    options = {"heading": field, "displays": LIVE, **options}
    of, metric = attrgetter(f"pool.{field}"), f"scalable_pool_{metric}"
    return Column(name=field, of=of, kind="count", metric=metric, help=help_, **options)


def _workers(field: str, name: str = "", **options: Any) -> Column:
    """Return a column with a number of workers that the managers report about a pool."""
    name = name or field
    metric = f"scalable_pool_{name}_workers"
    options = {"heading": name, "metric": metric, "help": f"The pool's {name} workers.", **options}
    return Column(name=name, of=attrgetter(f"pool.status.{field}"), kind="count", **options)


def spent(name: str, field: str, help_: str, metric: str | None = None, **options: Any) -> Column:
    """Return a column with one amount of a row's costs."""

    def of(row: Any) -> float | None:
        value = (row.cost or {}).get(field)
        return float(value) if isinstance(value, int | float) else None

    options = {"heading": name.replace("_", " "), "optional": True, **options}
    return Column(name=name, of=of, kind="money", metric=metric, help=help_, **options)


def _bounds(row: PoolRow) -> str:
    if row.pool.adaptive is None:
        return "fixed"
    least, most = row.pool.adaptive
    return f"{least} to {'any' if most is None else most}"


def reasons_of(pool: PoolOverview) -> list[str]:
    """Return why workers of a pool are missing, were lost, or leave."""
    status = pool.status
    reasons = [status.reason, status.waiting if status.running < status.wanted else None]
    if status.failed:
        reasons.append(f"{counted(status.failed, 'worker')} failed")
    if status.lost:
        last = f"; the last, {status.last_loss}" if status.last_loss else ""
        reasons.append(f"{counted(status.lost, 'worker')} lost{last}")
    leaving = [f"{count} leaving: {why}" for why, count in pool.leaving.items()]
    return [*dict.fromkeys(filter(None, reasons)), *leaving]


def pool_reasons(pools: Mapping[str, PoolOverview]) -> list[str]:
    """Return a line with each reason why workers of a pool are missing, were lost, or leave."""
    return [
        one_line(f"{tag or UNTAGGED_NAME}: {reason}")
        for tag, pool in pools.items()
        for reason in reasons_of(pool)
    ]


POOLS = Listing(
    (
        _pool_column(attrgetter("tag")),
        _workers("wanted", "desired"),
        _workers("running"),
        _workers("launching", heading="starting", optional=True),
        _workers("draining", optional=True),
        _workers("failed", optional=True),
        _workers("suspended", optional=True),
        _workers("lost", optional=True, metric="scalable_pool_lost_workers_total",
                 help="Workers of the pool that were lost and replaced since the manager started."),
        _count("busy", "busy_workers", "The pool's connected workers with tasks."),
        _count("idle", "idle_workers", "The pool's connected workers without tasks."),
        _count("used_slots", "used_slots", "Slots of the pool that running tasks use.",
               heading="slots", text=lambda row: f"{row.pool.used_slots}/{row.pool.slots}"),
        _count("slots", "slots", "Slots of the pool's connected workers.", displays=()),
        _count("queued", "queued_tasks", "Tasks that wait for a slot of the pool."),
        _count("blocked", "blocked_tasks", "Tasks of the pool that wait for their inputs.",
               optional=True),
        Column("bounds", "bounds", _bounds, displays=LIVE, help="Bounds of an adaptive pool."),
        spent("cost", "cost", "Cost of the pool's workers so far.",
              f"scalable_pool_cost_{_MONEY}_total"),
        spent("idle_cost", "idle", "Part of the cost of the pool's workers for time without tasks.",
              f"scalable_pool_idle_cost_{_MONEY}_total", displays=WIDE),
        spent("per_hour", "per_hour", "Cost of one hour with the pool's current workers.",
              displays=("status", *WIDE)),
        _workers("degraded", metric="scalable_pool_degraded", displays=(),
                 help="1 if the pool is degraded: its workers kept failing, and no more start."),
        Column("reason", "reason", lambda row: "; ".join(reasons_of(row.pool)),
               displays=("page",), optional=True,
               help="Why workers are missing, were lost, or leave."),
    ),
    key=attrgetter("tag"),
    pool=attrgetter("tag"),
    empty="no pools",
)  # fmt: skip


def pools_of_status(status: ClusterStatus) -> Table:
    """Return the pools of a cluster as its managers report them."""
    costs = (status.cost or {}).get("pools", {})
    rows = [PoolRow(tag, PoolOverview(p, cost=costs.get(tag))) for tag, p in status.pools.items()]
    return POOLS.table(rows, "status")


# Tasks by name ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TaskRow:
    """The tasks of one name, with the quantiles that only a finished run has."""

    task: TaskOverview
    #: By key of a measurement, without those that no task has.
    quantiles: Mapping[str, Quantiles] = field(default_factory=dict)
    #: Tags of the tasks, in alphabetical order.
    tags: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        """Number of tasks without cache hits."""
        return self.task.counts.total - self.task.counts.cached


def parts_of(counts: TaskCounts) -> dict[str, int]:
    """Return the numbers of tasks in the order of a bar."""
    return {state: getattr(counts, state) for state in BAR_STATES}


def _task_name(row: TaskRow) -> str:
    name, names = row.task.name, row.task.names
    return f"{name} ({names} names)" if names > 1 and not name.startswith("(") else name


def _state(state: str, **options: Any) -> Column:
    """Return the column with the number of tasks in a state."""
    if state in {"running", "queued", "blocked"}:
        metric = f'scalable_tasks{{state="{state}"}}'
        words = "Unfinished tasks by task name and state: running, queued or blocked."
    else:
        metric = f'scalable_tasks_finished_total{{result="{state}"}}'
        words = "Finished tasks by task name and result: done, failed, cancelled or cached."
    of = attrgetter(f"task.counts.{state}")
    return Column(state, state, of, "count", COUNTED, metric, words, **options)


def _kind(measurement: str) -> str:
    return "duration" if measurement.endswith("_s") else "bytes"


def _mean(each: Measurement) -> Column:
    return Column(each.heading.replace(" ", "_"), each.heading,
                  lambda row: row.task.sums.mean(each.key), _kind(each.key),
                  short=each.short, help=each.help)  # fmt: skip


def _quantile(of: str, name: str, short: str, heading: str = "") -> Column:
    """Return a column of the report with one quantile of a task name's measurements.
    Without a heading, it is only in the table of these measurements.
    """

    def value(row: TaskRow) -> float | None:
        measured = row.quantiles.get(of)
        return None if measured is None else float(getattr(measured, name))

    displays = {of, "report"} if heading else {of}
    return Column(
        f"{of}_{name}", heading or short, value, _kind(of), displays, optional=True, short=short
    )


TASKS = Listing(
    (
        Column("task", "task", attrgetter("task.name"), displays=LIVE | REPORTS,
               text=_task_name, width=48),
        _pool_column(attrgetter("task.tag")),
        Column("progress", "progress", lambda row: parts_of(row.task.counts), "progress"),
        _state("running"),
        _state("queued"),
        _state("blocked", optional=True),
        _state("done"),
        _state("failed", optional=True),
        _state("cancelled", optional=True),
        _state("cached", optional=True),
        *map(_mean, (each for each in MEASUREMENTS if each.heading)),
        _quantile("duration_s", "q50", "median", "median"),
        _quantile("duration_s", "q80", "80 %"),
        _quantile("duration_s", "q95", "95 %", "95 %"),
        _quantile("duration_s", "max", "max", "longest"),
        _quantile("duration_s", "total", "total", "total time"),
        _quantile("queued_s", "q50", "median", "median queue time"),
        _quantile("queued_s", "q95", "95 %", "95 % queue time"),
        _quantile("queued_s", "max", "max"),
        _quantile("peak_memory", "q50", "median", "median memory"),
        _quantile("peak_memory", "q95", "95 %"),
        _quantile("peak_memory", "max", "max", "peak memory"),
        Column("cpu", "CPU time", lambda row: row.task.sums["cpu_s"].total or None, "duration",
               ("report",), optional=True, help="CPU time of all tasks together."),
    ),
    key=lambda row: f"{row.task.tag or ''}\n{row.task.name}",
    displays=LIVE_AND_REPORT,
    pool=lambda row: row.task.tag or "",
    empty="no tasks yet",
)  # fmt: skip


# Workers ------------------------------------------------------------------------------------------


def _memory(worker: WorkerOverview) -> str:
    if not worker.memory_limit:
        return format_bytes(worker.memory)
    return f"{100 * worker.memory / worker.memory_limit:.0f} %"


WORKERS = Listing(
    (
        Column("worker", "worker", attrgetter("name"), width=28),
        _pool_column(attrgetter("tag")),
        Column("state", "state", attrgetter("state")),
        Column("slots", "slots", attrgetter("used_slots"), "count",
               text=lambda worker: f"{worker.used_slots}/{worker.slots}"),
        Column("assigned", "assigned", attrgetter("assigned"), "count",
               help="Tasks that the worker has received and not started."),
        Column("memory", "memory", attrgetter("memory"), "bytes", text=_memory,
               help="Memory in use, as a share of the worker's limit if it has one."),
        Column("tasks", "tasks", lambda worker: ", ".join(worker.tasks)),
    ),
    key=attrgetter("name"),
    pool=lambda worker: worker.tag or "",
    displays=LIVE,
    empty="no workers",
)  # fmt: skip


# Managers -----------------------------------------------------------------------------------------


class ManagerRow(NamedTuple):
    """A manager as in a cluster's status, with the costs of its workers."""

    manager: Mapping[str, Any]
    cost: Mapping[str, Any] | None = None


def _fact(name: str, heading: str, kind: str = "text", **options: Any) -> Column:
    return Column(name, heading, lambda row: row.manager.get(name), kind, **options)


def _manager_pools(row: ManagerRow) -> str:
    pools = (row.manager.get("pools") or {}).items()
    return ", ".join(
        f"{tag or UNTAGGED_NAME}: {pool.get('running', 0)}/{pool.get('wanted', 0)}"
        for tag, pool in pools
    )


def _manager_reasons(row: ManagerRow) -> str:
    pools = (row.manager.get("pools") or {}).items()
    return "; ".join(f"{tag}: {pool['reason']}" for tag, pool in pools if pool.get("reason"))


def _heard(row: ManagerRow) -> str:
    silent_s = row.manager.get("silent_s")
    return "-" if silent_s is None else f"{format_duration(silent_s)} ago"


MANAGERS = Listing(
    (
        _fact("id", "manager", width=24),
        _fact("target", "target", width=16),
        _fact("provider", "provider", displays=LIVE),
        _fact("state", "state"),
        _fact("priority", "priority", "count", displays=("status",)),
        _fact("silent_s", "heard", "duration", text=_heard, displays=LIVE,
              help="Time since the manager's last report."),
        Column("workers", "workers", _manager_pools, displays=LIVE,
               help="Running and desired workers of each pool."),
        Column("reason", "reason", _manager_reasons, displays=LIVE, optional=True,
               help="Why the manager's workers do not start."),
        spent("cost", "cost", "Cost of the manager's workers so far.",
              displays=("status", *WIDE)),
        spent("per_hour", "per_hour", "Cost of one hour with the manager's current workers.",
              displays=("status", *WIDE)),
    ),
    key=lambda row: str(row.manager.get("id")),
    empty="no managers",
)  # fmt: skip


def managers_table(
    managers: Iterable[Mapping[str, Any]], cost: Mapping[str, Any] | None, display: str
) -> Table:
    """Return the managers of a cluster. ``cost`` is the cluster's."""
    costs = (cost or {}).get("managers", {})
    rows = [ManagerRow(manager, costs.get(str(manager.get("id")))) for manager in managers]
    return MANAGERS.table(rows, display)


# Failures and decisions ---------------------------------------------------------------------------


def cause_of(failure_class: object, frame: object, message: object) -> str:
    """Return what failures with one cause share: class, and frame of the user's code if known.
    Without a frame, their messages are the same except for numbers.
    """
    place = frame or _NUMBERS.sub("0", str(message or "").strip().partition("\n")[0])
    return f"{failure_class}\n{place}"


def failures_by_cause(failures: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Group rows of ``failures.jsonl``, the oldest first, by cause: the latest cause first.
    A group is its last row, with its ``cause`` and the number of all its failed tasks.
    """
    groups: dict[str, dict[str, Any]] = {}
    for row in failures:
        details = row.get("details") or {}
        cause = cause_of(row.get("failure_class"), details.get("frame"), row.get("message"))
        count = int(row.get("count") or 1) + groups.pop(cause, {"count": 0})["count"]
        groups[cause] = {**row, "details": details, "count": count, "cause": cause}
    return dict(reversed(groups.items()))


def _recorded(name: str, heading: str, kind: str = "text", **options: Any) -> Column:
    return Column(heading, heading, lambda row: row.get(name), kind, **options)


def _failed_task(group: Mapping[str, Any]) -> str:
    return str(group["details"].get("task_name") or group["details"].get("phase") or "")


FAILURES = Listing(
    (
        Column("count", "tasks", itemgetter("count"), "count"),
        _recorded("timestamp", "last", "time"),
        _recorded("failure_class", "error", width=24),
        Column("task", "task", _failed_task, width=24),
        _recorded("message", "message"),
    ),
    key=itemgetter("cause"),
    pool=lambda group: str(group["details"].get("tag") or ""),
    displays=LIVE_AND_REPORT,
    empty="no failures",
)


# Decisions are rows of ``scaling.jsonl`` with their ``number``.

#: What changed a number of workers if the reason is only that it was changed.
_BY = {"manual": "set by hand", "plan": "planned"}


def _decision_reason(row: Mapping[str, Any]) -> str:
    reason = str(row.get("reason") or "")
    return _BY.get(str(row.get("source")), reason) if reason == "scale" else reason


def _decision_tag(row: Mapping[str, Any]) -> str:
    return str(row.get("tag") or "")


DECISIONS = Listing(
    (
        _recorded("timestamp", "time", "time"),
        _pool_column(_decision_tag),
        _recorded("from", "from", "count"),
        _recorded("to", "to", "count"),
        _recorded("source", "by", width=12),
        Column("reason", "reason", _decision_reason),
    ),
    key=lambda row: f"{row.get('timestamp')} {row['number']}",
    pool=_decision_tag,
    displays=LIVE_AND_REPORT,
    empty="no decisions yet",
)


_NO_EVENTS = Events(seq=0)


def tables_of(
    overview: Overview,
    display: str,
    events: Events = _NO_EVENTS,
    workers: Iterable[WorkerOverview] = (),
) -> dict[str, Table]:
    """Return all tables of a cluster by name. The newest failures and decisions come first."""
    at = overview.at
    causes = failures_by_cause(events.failures).values()
    decisions = [{**row, "number": number} for number, row in enumerate(events.decisions)]
    return {
        "pools": POOLS.table(itertools.starmap(PoolRow, overview.pools.items()), display, at),
        "tasks": TASKS.table(map(TaskRow, overview.tasks), display, at),
        "workers": WORKERS.table(workers, display),
        "managers": managers_table(overview.managers, overview.cost, display),
        "failures": FAILURES.table(causes, display, at),
        "decisions": DECISIONS.table(reversed(decisions), display, at),
    }


# A user's clusters --------------------------------------------------------------------------------


class ClusterRow(NamedTuple):
    """A cluster with the name of its run, and the time at which it is shown."""

    status: ClusterStatus
    run: str
    now: float

    @property
    def cost(self) -> Mapping[str, Any] | None:
        return self.status.cost


def _name(row: ClusterRow) -> str:
    return row.status.name or ("(orphan)" if row.status.orphan else "-")


def _running(row: ClusterRow) -> int:
    return sum(pool.running for pool in row.status.pools.values())


def _running_and_wanted(row: ClusterRow) -> str:
    return f"{_running(row)}/{sum(pool.wanted for pool in row.status.pools.values())}"


def _short_id(row: ClusterRow) -> str:
    # Clusters of other packages have no UUID.
    return "-" if ":" in row.status.id else row.status.id[:8]


def _age_s(row: ClusterRow) -> float | None:
    try:
        made = datetime.fromisoformat(row.status.created_at).astimezone(UTC).timestamp()
    except (ValueError, TypeError):
        return None
    return max(0.0, row.now - made)


CLUSTERS = Listing(
    (
        Column("name", "name", attrgetter("status.name"), text=_name, width=32),
        Column("kind", "kind", lambda row: "embedded" if row.status.embedded else "detached"),
        Column("provider", "provider", attrgetter("status.provider")),
        Column("state", "state", attrgetter("status.state")),
        Column("workers", "workers", _running, "count", text=_running_and_wanted,
               help="Running and desired workers."),
        Column("id", "id", attrgetter("status.id"), text=_short_id),
        Column("age", "age", _age_s, "duration"),
        Column("run", "run", attrgetter("run"), width=40, optional=True),
        spent("cost", "cost", "Cost of the cluster so far."),
    ),
    key=attrgetter("status.id"),
    empty="no running clusters or sessions",
)  # fmt: skip


def clusters_table(
    clusters: Iterable[ClusterStatus], runs: Mapping[str, str], now: float, display: str
) -> Table:
    """Return the clusters of a user. ``runs`` maps cluster ids to names of runs."""
    rows = [ClusterRow(status, runs.get(status.id, ""), now) for status in clusters]
    return CLUSTERS.table(rows, display, now)
