"""Metrics of an overview as objects of prometheus-client. Does no I/O.

Names follow https://prometheus.io/docs/practices/naming/. Labels are bounded in number and size.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

from prometheus_client import generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
    SummaryMetricFamily,
)

from scalable.harmless import label
from scalable.model.clusters import STATES
from scalable.model.overview import Overview, TaskOverview
from scalable.views import cluster_text, columns
from scalable.views.columns import PoolRow, TaskRow
from scalable.views.tables import Listing

#: Objects of rows by the values of their labels.
_Rows = Mapping[tuple[str, ...], Any]
#: States of a manager that are exported, even with the value 0.
_MANAGER_STATES = ("attached", "leaving", "lost")


def exposition(overview: Overview) -> bytes:
    """Return the metrics of an overview in Prometheus' text format."""
    registry: Any = SimpleNamespace(collect=lambda: exported(overview))
    return generate_latest(registry)


def exported(overview: Overview) -> Iterator[Metric]:
    """Yield the metrics of an overview that was made with ``lasting=True``."""
    yield from _cluster(overview)
    yield from _of_columns(cluster_text.CLUSTER, {(): overview})
    pools: _Rows = {(label(tag),): PoolRow(tag, pool) for tag, pool in overview.pools.items()}
    yield from _of_columns(columns.POOLS, pools, "pool")
    tasks = _labelled(overview.tasks)
    yield from _of_columns(columns.TASKS, tasks, "task", "pool")
    yield from _times(tasks)
    yield from _scaling(overview)


def _of_columns(listing: Listing, rows: _Rows, *names: str) -> Iterator[Metric]:
    """Yield the metrics of a listing's columns. ``rows`` have the values of the labels ``names``.
    Columns with different labels of one metric are one family.
    """
    families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
    for column in listing.columns:
        if column.metric is None:
            continue
        name, own = series(column.metric)
        family = families.get(name)
        if family is None:
            kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            made = kind(name.removesuffix("_total"), column.help, labels=[*names, *own])
            family = families[name] = made
        for labels, row in rows.items():
            if (value := column.of(row)) is not None:
                family.add_metric([*labels, *own.values()], value)
    yield from (family for family in families.values() if family.samples)


def series(text: str) -> tuple[str, dict[str, str]]:
    """Return the name and the label of a series such as ``tasks_total{state="done"}``."""
    name, _, own = text.removesuffix('"}').partition("{")
    key, _, value = own.partition('="')
    return name, {key: value} if key else {}


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
    counts = Counter(str(manager.get("state")) for manager in overview.managers)
    managers = GaugeMetricFamily("scalable_managers", "Managers by state.", labels=["state"])
    for state in _MANAGER_STATES:
        managers.add_metric([state], counts[state])
    yield managers


def _times(tasks: Mapping[tuple[str, ...], TaskRow]) -> Iterator[Metric]:
    named = ["task", "pool"]
    words = "Running times of finished tasks."
    running = SummaryMetricFamily("scalable_task_duration_seconds", words, labels=named)
    words = "Queue times of finished tasks: from ready to running, without transfers."
    queued = SummaryMetricFamily("scalable_task_queue_seconds", words, labels=named)
    for labels, row in tasks.items():
        running.add_metric(labels, *row.task.sums["duration_s"])
        queued.add_metric(labels, *row.task.sums["queued_s"])
    yield from (running, queued)


def _labelled(tasks: Iterable[TaskOverview]) -> dict[tuple[str, ...], TaskRow]:
    """Map labels to the tasks of a name. Names with equal labels are added up."""
    summed: dict[tuple[str, ...], TaskOverview] = {}
    for task in tasks:
        labels = label(task.name), label(task.tag or "")
        summed[labels] = summed[labels] + task if labels in summed else task
    return {labels: TaskRow(task) for labels, task in summed.items()}


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
