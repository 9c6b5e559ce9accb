"""Metrics of an overview as objects of prometheus-client. Does no I/O.

Names follow https://prometheus.io/docs/practices/naming/. Labels are bounded in number and size.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from prometheus_client import generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector

from scalable.harmless import escaped
from scalable.model.clusters import STATES
from scalable.model.costs import CURRENCY
from scalable.model.names import is_control
from scalable.model.overview import Overview, PoolOverview, TaskOverview

_MONEY = CURRENCY.lower()
#: States of a manager that are exported, even with the value 0.
_MANAGER_STATES = ("attached", "leaving", "lost")


def exposition(overview: Overview) -> bytes:
    """Return the metrics of an overview in Prometheus' text format."""
    return generate_latest(_Collected(list(exported(overview))))


class _Collected(Collector):
    """Collector of existing metrics, as prometheus-client requires."""

    def __init__(self, metrics: list[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> list[Metric]:
        return self._metrics


def exported(overview: Overview) -> Iterator[Metric]:
    """Yield the metrics of an overview that was made with ``lasting=True``."""
    yield from _cluster(overview)
    yield from _pools(overview.pools)
    yield from _tasks(overview.tasks)
    yield from _scaling(overview)
    yield from _end(overview)
    if overview.cost is not None:
        yield from _costs(overview.cost)


def _cluster(overview: Overview) -> Iterator[Metric]:
    facts = overview.cluster
    names = ("id", "name", "project", "target", "provider")
    texts = {name: label(facts.get(name) or "") for name in names}
    yield InfoMetricFamily("scalable_cluster", "Names of the cluster.", value=texts)
    if (started := facts.get("started_at")) is not None:
        words = "Time at which the scheduler started, in seconds since 1970."
        yield GaugeMetricFamily("scalable_cluster_start_timestamp_seconds", words, value=started)
    words = "State of the cluster: 1 for the current state, 0 for all others."
    states = GaugeMetricFamily("scalable_cluster_state", words, labels=["state"])
    for state in STATES:
        states.add_metric([state], state == facts.get("state"))
    yield states
    yield GaugeMetricFamily("scalable_workers", "Connected workers.", value=overview.workers)
    yield GaugeMetricFamily("scalable_clients", "Connected clients.", value=overview.clients)
    counts = Counter(str(manager.get("state")) for manager in overview.managers)
    managers = GaugeMetricFamily("scalable_managers", "Managers by state.", labels=["state"])
    for state in _MANAGER_STATES:
        managers.add_metric([state], counts[state])
    yield managers


def _pools(pools: Mapping[str, PoolOverview]) -> Iterator[Metric]:
    tags = {tag: label(tag) for tag in pools}
    for name in ("desired", "running", "launching", "draining", "failed", "suspended"):
        words = f"The pool's {name} workers."
        metric = GaugeMetricFamily(f"scalable_pool_{name}_workers", words, labels=["pool"])
        field = "wanted" if name == "desired" else name
        for tag, pool in pools.items():
            metric.add_metric([tags[tag]], getattr(pool.status, field))
        yield metric
    for name, field, words in (
        ("busy_workers", "busy", "The pool's connected workers with tasks."),
        ("idle_workers", "idle", "The pool's connected workers without tasks."),
        ("slots", "slots", "Slots of the pool's connected workers."),
        ("used_slots", "used_slots", "Slots of the pool that running tasks use."),
        ("waiting_tasks", "waiting", "Queued and blocked tasks of the pool."),
    ):
        metric = GaugeMetricFamily(f"scalable_pool_{name}", words, labels=["pool"])
        for tag, pool in pools.items():
            metric.add_metric([tags[tag]], getattr(pool, field))
        yield metric
    words = "1 if the pool is degraded: its workers kept failing, and no more are started."
    degraded = GaugeMetricFamily("scalable_pool_degraded", words, labels=["pool"])
    words = "Workers of the pool that were lost and replaced since the manager started."
    lost = CounterMetricFamily("scalable_pool_lost_workers", words, labels=["pool"])
    for tag, pool in pools.items():
        degraded.add_metric([tags[tag]], pool.status.degraded)
        lost.add_metric([tags[tag]], pool.status.lost)
    yield degraded
    yield lost


def _tasks(tasks: Iterable[TaskOverview]) -> Iterator[Metric]:
    named = ["task", "pool"]
    words = "Unfinished tasks by task name and state: running, or waiting (queued or blocked)."
    unfinished = GaugeMetricFamily("scalable_tasks", words, labels=[*named, "state"])
    words = "Finished tasks by task name and result: done, failed, cancelled or cached."
    finished = CounterMetricFamily("scalable_tasks_finished", words, labels=[*named, "result"])
    words = "Running times of finished tasks."
    running = SummaryMetricFamily("scalable_task_duration_seconds", words, labels=named)
    words = "Queue times of finished tasks: from ready to running, without transfers."
    queued = SummaryMetricFamily("scalable_task_queue_seconds", words, labels=named)
    for names, task in _labelled(tasks):
        for state in ("running", "waiting"):
            unfinished.add_metric([*names, state], getattr(task.counts, state))
        for result in ("done", "failed", "cancelled"):
            finished.add_metric([*names, result], getattr(task.counts, result))
        finished.add_metric([*names, "cached"], task.counts.found)
        running.add_metric(names, task.measured, task.run_s)
        queued.add_metric(names, task.queued, task.queued_s)
    yield from (unfinished, finished, running, queued)


def _labelled(tasks: Iterable[TaskOverview]) -> Iterator[tuple[Sequence[str], TaskOverview]]:
    """Yield labels and numbers of task names. Names with equal labels are added up."""
    summed: dict[tuple[str, str], TaskOverview] = {}
    for task in tasks:
        names = label(task.name), label(task.tag or "")
        summed[names] = summed[names] + task if names in summed else task
    yield from summed.items()


def _scaling(overview: Overview) -> Iterator[Metric]:
    words = "Changes of the desired number of workers."
    decisions = CounterMetricFamily("scalable_scaling_decisions", words, labels=["pool", "action"])
    for tag, actions in overview.scaled.items():
        for action, count in actions.items():
            decisions.add_metric([label(tag), action], count)
    yield decisions
    words = "Failures of tasks, worker starts, pools and budgets, by class."
    failures = CounterMetricFamily("scalable_failures", words, labels=["failure_class"])
    counts: Counter[str] = Counter()
    for name, count in overview.failures.items():
        counts[label(name)] += count
    for name, count in counts.items():
        failures.add_metric([name], count)
    yield failures


def _end(overview: Overview) -> Iterator[Metric]:
    words = "Predicted finish of all current tasks, with an 80 % interval, in seconds since 1970."
    end = GaugeMetricFamily("scalable_predicted_end_timestamp_seconds", words, labels=["bound"])
    bounds = {"expected": overview.end.at, "low": overview.end.low, "high": overview.end.high}
    for bound, at in bounds.items():
        if at is not None:
            end.add_metric([bound], at)
    yield end


def _costs(cost: Mapping[str, object]) -> Iterator[Metric]:
    yield CounterMetricFamily(
        f"scalable_cost_{_MONEY}", "Cost so far.", value=_number(cost, "cost")
    )
    words = "Part of the cost for time without tasks."
    yield CounterMetricFamily(f"scalable_idle_cost_{_MONEY}", words, value=_number(cost, "idle"))
    words = "Cost of one hour with the current machines."
    per_hour = _number(cost, "per_hour")
    yield GaugeMetricFamily(f"scalable_cost_{_MONEY}_per_hour", words, value=per_hour)
    if cost.get("budget") is not None:
        budget = _number(cost, "budget")
        yield GaugeMetricFamily(f"scalable_budget_{_MONEY}", "The budget.", value=budget)
    words = "Cost of the pool's workers so far."
    spent = CounterMetricFamily(f"scalable_pool_cost_{_MONEY}", words, labels=["pool"])
    words = "Part of the cost of the pool's workers for time without tasks."
    idle = CounterMetricFamily(f"scalable_pool_idle_cost_{_MONEY}", words, labels=["pool"])
    pools = cost.get("pools")
    for tag, own in (pools if isinstance(pools, Mapping) else {}).items():
        spent.add_metric([label(tag)], _number(own, "cost"))
        idle.add_metric([label(tag)], _number(own, "idle"))
    yield from (spent, idle)


def _number(values: Mapping[str, object], name: str) -> float:
    value = values.get(name)
    return float(value) if isinstance(value, int | float) else 0.0


# Labels -------------------------------------------------------------------------------------------

#: Maximum characters of a label. Of longer strings a prefix is kept.
LONGEST_VALUE = 100


def label(text: object) -> str:
    """Return a string as the value of a label."""
    given = str(text)
    if given.isascii() and given.isprintable() and len(given) <= LONGEST_VALUE:
        return given
    shown = "".join(escaped(c) if is_control(c) else c for c in given[: LONGEST_VALUE + 1])
    return shown if len(shown) <= LONGEST_VALUE else f"{shown[: LONGEST_VALUE - 3]}..."
