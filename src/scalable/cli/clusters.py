"""Formatting of clusters as rows, text and JSON values."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import Any

from scalable.harmless import one_line
from scalable.model import ClusterStatus
from scalable.model.costs import CURRENCY
from scalable.model.overview import PoolOverview, TaskCounts
from scalable.views.cluster_text import costs_in_words, stop_in_words
from scalable.views.columns import clusters_table, managers_table, pools_of_status, reasons_of
from scalable.views.tables import counts_in_words, money


def render_list(clusters: Collection[ClusterStatus]) -> str:
    """Format clusters, one per line."""
    if not clusters:
        return "no clusters\n"
    table = clusters_table(clusters, {}, time.time(), "status")
    return "\n".join(table.lines()) + "\n"


def render_status(status: ClusterStatus) -> str:
    """Format a cluster, its pools and its managers."""
    because = f": {_indented(status.reason)}" if status.reason else ""
    lines = [
        f"Cluster:   {status.name} ({status.id})",
        f"State:     {status.state}{because}",
        f"Target:    {status.target} (provider {status.provider})",
        f"Address:   {status.address or '-'}",
    ]
    if status.dashboard:  # the link of `scalable dashboard`, not that of Dask's pages
        lines.append(
            f"Dashboard: {status.dashboard.replace('/status?token=', '/scalable/?token=')}"
        )
    lives = status.state in ("starting", "running", "degraded", "unmanaged")
    counts = TaskCounts.from_dict(status.tasks or {})
    idle_ends_at = None if counts.unfinished else status.idle_ends_at
    stops = stop_in_words(status.ends_at, idle_ends_at, time.time())
    lines += [f"Stops:     {stops}"] if lives and stops else []
    tasks = f"{counts_in_words(vars(counts))}; see `scalable top {status.name}`"
    lines += [f"Tasks:     {tasks}"] if counts.total else []
    cost = status.cost
    lines += [] if cost is None else [render_cost(cost)]
    pools = pools_of_status(status)
    lines += ["", *pools.lines()] if pools.rows else []
    for tag, pool in status.pools.items():
        lines += [f"  {tag}: {_indented(why)}" for why in reasons_of(PoolOverview(pool))]
    managers = managers_table(status.managers, cost, "status")
    lines += ["", *managers.lines()] if managers.rows else []
    for manager in status.managers if len(status.managers) > 1 else ():
        for tag, report in manager.get("pools", {}).items():
            if why := report.get("reason") or report.get("waiting"):
                lines.append(f"  {manager['id']}: {tag}: {_indented(why)}")
    return "\n".join(lines) + "\n"


def render_progress(status: ClusterStatus) -> str:
    """Format the progress of a starting cluster as one line."""
    parts = []
    for tag, pool in status.pools.items():
        words = f"{tag}: {pool.running}/{pool.wanted} workers"
        if pool.launching:
            words += f", {pool.launching} starting"
        if why := "; ".join(reasons_of(PoolOverview(pool))):
            words += f" ({why})"
        parts.append(words)
    return one_line(" | ".join([status.state, *parts]))


def render_changes(now: Mapping[str, int], then: Mapping[str, int]) -> list[str]:
    """Format a new plan's changes: ``+`` more workers, ``-`` fewer, ``~`` cannot change."""
    lines = []
    for tag in [*now, *(t for t in then if t not in now)]:
        before, after = now.get(tag), then.get(tag)
        if before is None:
            lines.append(
                f"  ~ {tag}: the running cluster has no such pool; delete the cluster to add it"
            )
        elif after is None:
            lines.append(f"  ~ {tag}: no longer in the manifest; its workers stay ({before})")
        elif after != before:
            lines.append(f"  {'+' if after > before else '-'} {tag}: {before} -> {after} workers")
    return lines


def _indented(text: str) -> str:
    """Indent all lines but the first, so that they differ from lines of the status."""
    return text.replace("\n", "\n    ")


# Costs --------------------------------------------------------------------------------------------


def render_cost(cost: Mapping[str, Any]) -> str:
    """Format the costs and the budget of a cluster as lines."""
    return "Cost:      " + "\n           ".join(costs_in_words(cost))


def render_budget(cost: Mapping[str, Any], budget: float) -> str:
    """Format the costs of a cluster after its budget has been set."""
    return render_cost(cost) if cost else no_prices(budget)


def no_prices(budget: float) -> str:
    """Return a remark about a budget for a cluster without prices."""
    return f"the budget of {money(budget)} {CURRENCY} has no effect: no worker has a price"
