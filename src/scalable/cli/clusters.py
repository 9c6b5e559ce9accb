"""Formatting of clusters as rows, text and JSON values."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from scalable.model import ClusterStatus, PoolStatus
from scalable.model.costs import CURRENCY
from scalable.runs.report.table import on_one_line, table
from scalable.units import counted, format_amount, format_duration

_LIST_HEADER = ("name", "provider", "state", "workers", "id", "age")
_POOL_HEADER = ("pool", "desired", "running", "launching", "failed")
_MANAGER_HEADER = ("manager", "target", "state", "priority")
#: Titles of the extra columns if anything has a price.
_COST_HEADER = ("cost", "per hour")


def render_list(clusters: Sequence[ClusterStatus]) -> str:
    """Format clusters, one per line."""
    if not clusters:
        return "no clusters\n"
    priced = any(status.cost for status in clusters)
    header = _LIST_HEADER + (("cost",) if priced else ())
    rows = [
        (
            status.name or ("(orphan)" if status.orphan else None),
            status.provider + (" (embedded)" if status.embedded else ""),
            status.state,
            _workers(status.pools.values()),
            None if ":" in status.id else status.id[:8],  # other packages' clusters have no UUID
            _age(status.created_at),
            *(_cells(status.cost)[:1] if priced else ()),
        )
        for status in clusters
    ]
    return "\n".join(table(header, rows)) + "\n"


def render_status(status: ClusterStatus) -> str:
    """Format a cluster, its pools and its managers."""
    because = f": {_indented(status.reason)}" if status.reason else ""
    lines = [
        f"Cluster:   {status.name} ({status.id})",
        f"State:     {status.state}{because}",
        f"Target:    {status.target} (provider {status.provider})",
        f"Address:   {status.address or '-'}",
    ]
    if status.dashboard:
        lines.append(f"Dashboard: {status.dashboard}")
    lives = status.state in ("starting", "running", "degraded", "unmanaged")
    ends = [] if status.idle_ends_at is None else [(status.idle_ends_at, " without work")]
    if status.ends_at is not None:
        ends.append((status.ends_at, " in any case" if ends else ""))
        ends = ends[-1:] if ends[0][0] >= status.ends_at else ends
    left = [f"{format_duration(max(0.0, at - time.time()))}{words}" for at, words in ends]
    lines += [f"Ends:      in {', in '.join(left)}"] if lives and left else []
    cost = status.cost
    lines += [] if cost is None else render_cost(cost)
    pools = [
        (
            tag,
            *(pool.wanted, pool.running, pool.launching, pool.failed),
            *(() if cost is None else _cells(cost["pools"].get(tag))),
        )
        for tag, pool in status.pools.items()
    ]
    more = () if cost is None else _COST_HEADER
    lines += ["", *table(_POOL_HEADER + more, pools)] if pools else []
    for tag, pool in status.pools.items():
        if why := _why_fewer(pool):
            lines.append(f"  {tag}: {_indented(why)}")
        if pool.lost:
            last = f"; the last, {_indented(pool.last_loss)}" if pool.last_loss else ""
            lines.append(f"  {tag}: {counted(pool.lost, 'worker')} lost{last}")
    managers = [
        (
            *(m["id"], m.get("target", ""), m["state"], m.get("priority", 0)),
            *(() if cost is None else _cells(cost["managers"].get(str(m["id"])))),
        )
        for m in status.managers
    ]
    lines += ["", *table(_MANAGER_HEADER + more, managers)] if managers else []
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
            words += f", {pool.launching} launching"
        if why := _why_fewer(pool):
            words += f" ({why})"
        parts.append(words)
    return on_one_line(" | ".join([status.state, *parts]))


def _why_fewer(pool: PoolStatus) -> str | None:
    """Return why workers are missing, or None once all run."""
    return pool.reason or (pool.waiting if pool.running < pool.wanted else None)


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


def _workers(pools: Collection[PoolStatus]) -> str:
    return f"{sum(pool.running for pool in pools)}/{sum(pool.wanted for pool in pools)}"


def _age(created_at: str) -> str | None:
    try:
        age = datetime.now(UTC) - datetime.fromisoformat(created_at)
    except (ValueError, TypeError):
        return None
    return format_duration(max(0.0, age.total_seconds()))


# Costs --------------------------------------------------------------------------------------------


def _cells(cost: Mapping[str, Any] | None) -> tuple[str | None, ...]:
    """Return cost and rate of a pool or a manager, for the columns of :data:`_COST_HEADER`."""
    if cost is None:
        return None, None
    return _amount(cost["cost"]), _amount(cost["per_hour"])


def render_cost(cost: Mapping[str, Any]) -> list[str]:
    """Format the costs and the budget of a cluster as lines."""
    so_far, idle, rate = (_amount(cost[key]) for key in ("cost", "idle", "per_hour"))
    lines = [
        f"Cost:      {so_far} {CURRENCY} so far, {rate} an hour now; {idle} for time without tasks"
    ]
    lines += [
        f"           without workers of manager {manager}: their price is not known"
        for manager in cost.get("unpriced", ())
    ]
    budget = cost.get("budget")
    if budget is not None:
        share = int(100 * cost["cost"] / budget)
        lines.append(f"Budget:    {_amount(budget)} {CURRENCY}, {share} % spent")
        if cost.get("words"):
            lines.append(f"           {cost['words']}; {cost['way_out']}")
    return lines


def render_budget(cost: Mapping[str, Any], budget: float) -> list[str]:
    """Format the costs of a cluster after its budget has been set."""
    return render_cost(cost) if cost else [no_prices(budget)]


def no_prices(budget: float) -> str:
    """Return a remark about a budget for a cluster without prices."""
    return f"the budget of {_amount(budget)} {CURRENCY} has no effect: no worker has a price"


def _amount(amount: float) -> str:
    return format_amount(amount, CURRENCY)
