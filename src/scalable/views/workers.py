"""Tables of a cluster's workers, and of a user's clusters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from scalable.model.clusters import ClusterStatus
from scalable.model.overview import WorkerOverview
from scalable.units import format_bytes, format_duration
from scalable.views.overview_tables import UNTAGGED_NAME
from scalable.views.tables import Column, Table, row

WORKER_COLUMNS = (
    Column("worker", width=28),
    Column("pool", width=16),
    Column("state"),
    Column("slots", number=True),
    Column("waiting", number=True),
    Column("memory", number=True),
    Column("tasks"),
)
CLUSTER_COLUMNS = (
    Column("name", width=32),
    Column("kind"),
    Column("provider"),
    Column("state"),
    Column("workers", number=True),
    Column("age", number=True),
    Column("run", width=40),
)


def workers_table(workers: Iterable[WorkerOverview]) -> Table:
    """Return the workers of a cluster."""
    rows = []
    for worker in workers:
        share = f"{100 * worker.memory / worker.memory_limit:.0f} %" if worker.memory_limit else "-"
        names = ", ".join(worker.tasks)
        tag = worker.tag or ""
        values = (
            *(worker.name, tag, worker.state, worker.used_slots, worker.assigned),
            *(worker.memory, names),
        )
        texts = (
            *(worker.name, tag or UNTAGGED_NAME, worker.state),
            *(f"{worker.used_slots}/{worker.slots}", worker.assigned),
            share if worker.memory_limit else format_bytes(worker.memory),
            names or "-",
        )
        rows.append(row(worker.name, values, texts, pool=tag))
    return Table(WORKER_COLUMNS, tuple(rows), "no workers")


def clusters_table(clusters: Iterable[ClusterStatus], runs: Mapping[str, str], now: float) -> Table:
    """Return the clusters of a user. ``runs`` maps cluster ids to names of runs."""
    rows = []
    for status in clusters:
        running = sum(pool.running for pool in status.pools.values())
        wanted = sum(pool.wanted for pool in status.pools.values())
        age_s, run = _age_s(status.created_at, now), runs.get(status.id, "")
        kind = "embedded" if status.embedded else "detached"
        values: tuple[Any, ...] = (
            *(status.name, kind, status.provider, status.state, running, age_s, run),
        )
        texts = (
            *(status.name or "-", kind, status.provider, status.state, f"{running}/{wanted}"),
            *("-" if age_s is None else format_duration(age_s), run or "-"),
        )
        rows.append(row(status.id, values, texts))
    return Table(CLUSTER_COLUMNS, tuple(rows), "no running clusters or sessions")


def _age_s(created_at: str, now: float) -> float | None:
    try:
        return max(0.0, now - datetime.fromisoformat(created_at).astimezone(UTC).timestamp())
    except (ValueError, TypeError):
        return None
