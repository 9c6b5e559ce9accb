"""Formatting of clusters, and options shared by the commands for clusters."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from scalable.cli.costs import HEADER, cells, render_cost
from scalable.harmless import harmless
from scalable.model import ClusterStatus, PoolStatus, names
from scalable.units import counted, format_duration, parse_duration

Command = TypeVar("Command", bound=Callable[..., Any])

_LIST_HEADER = ("name", "provider", "state", "workers", "id", "age")
_POOL_HEADER = ("pool", "desired", "running", "launching", "failed")
_MANAGER_HEADER = ("manager", "target", "state", "priority")


class Duration(click.ParamType[Any]):
    """Click type of a duration such as ``10m``, converted to seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, float):
            return value
        try:
            seconds = parse_duration(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if seconds <= 0:
            self.fail(f"{value!r} must be more than 0", param, ctx)
        return seconds


def complete_cluster(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    """Return the names of recorded clusters for shell completion."""
    from scalable.errors import ClusterError
    from scalable.records import all_directories

    names = set()
    for directory in all_directories()[0]:
        with suppress(OSError, ClusterError):  # it may be deleted at this moment
            names.add(directory.record().name)
    return sorted(name for name in names if name.startswith(incomplete))


def complete_cluster_or_file(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[str] | list[CompletionItem]:
    """Return the names of recorded clusters, or request the shell's own path completion."""
    names = complete_cluster(ctx, param, incomplete)
    return names or [CompletionItem(incomplete, type="file")]


def name_argument(command: Command) -> Command:
    """Add the name of a cluster as an argument."""
    return click.argument("name", shell_complete=complete_cluster)(command)


def optional_name_argument(command: Command) -> Command:
    """Add the name of a cluster as an optional argument."""
    return click.argument("name", required=False, shell_complete=complete_cluster)(command)


def read_counts(words: Sequence[str]) -> dict[str, int]:
    """Parse counts written as ``tag=n``, or raise click.UsageError."""
    counts: dict[str, int] = {}
    for word in words:
        tag, separator, number = word.partition("=")
        if not (tag and separator and number.isascii() and number.isdigit()):
            raise click.UsageError(f"{word!r} is not a count: write tag=n, for example climate=3")
        if fault := names.TAG.fault(tag):
            raise click.UsageError(f"{word!r} is not a count: {fault}")
        if tag in counts:
            raise click.UsageError(f"{word!r}: {tag!r} is given twice")
        counts[tag] = int(number)
    return counts


def confirm(question: str, *, yes: bool) -> None:
    """Ask for confirmation unless ``yes``. Raises click.Abort, or UsageError without a terminal."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(f"{question} Standard input is not a terminal: confirm with --yes.")
    click.confirm(harmless(question), abort=True, err=True)


def cluster_data(status: ClusterStatus) -> dict[str, Any]:
    """Return a cluster as a JSON value."""
    return status.to_dict()


def render_list(clusters: Sequence[ClusterStatus]) -> str:
    """Format clusters, one per line."""
    from scalable.runs.report.table import table

    if not clusters:
        return "no clusters\n"
    priced = any(status.cost for status in clusters)
    header = _LIST_HEADER + (("cost",) if priced else ())
    rows = [
        (
            status.name or ("(orphan)" if status.orphan else "-"),
            status.provider + (" (embedded)" if status.embedded else ""),
            status.state,
            _workers(status.pools),
            "-" if ":" in status.id else status.id[:8],  # other packages' clusters have no UUID
            _age(status.created_at),
            *(cells(status.cost)[:1] if priced else ()),
        )
        for status in clusters
    ]
    return "\n".join(table(header, rows)) + "\n"


def render_status(status: ClusterStatus) -> str:
    """Format a cluster, its pools and its managers."""
    from scalable.runs.report.table import table

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
    ends = [(moment, "") for moment in (status.ends_at,) if moment is not None]
    if status.idle_ends_at is not None:
        ends.append((status.idle_ends_at, " without work"))
    if lives and ends:
        moment, words = min(ends)
        left = format_duration(max(0.0, moment - time.time()))
        lines.append(f"Ends:      in {left}{words}")
    cost = status.cost
    lines += [] if cost is None else render_cost(cost)
    pools = [
        (
            tag,
            *map(str, (pool.wanted, pool.running, pool.launching, pool.failed)),
            *(() if cost is None else cells(cost["pools"].get(tag))),
        )
        for tag, pool in status.pools.items()
    ]
    more = () if cost is None else HEADER
    lines += ["", *table(_POOL_HEADER + more, pools)] if pools else []
    for tag, pool in status.pools.items():
        if why := _why_fewer(pool):
            lines.append(f"  {tag}: {_indented(why)}")
        if pool.lost:
            last = f"; the last, {_indented(pool.last_loss)}" if pool.last_loss else ""
            lines.append(f"  {tag}: {counted(pool.lost, 'worker')} lost{last}")
    managers = [
        (
            *(str(m["id"]), str(m.get("target", "")), str(m["state"]), str(m.get("priority", 0))),
            *(() if cost is None else cells(cost["managers"].get(str(m["id"])))),
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
    from scalable.runs.report.table import on_one_line

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


def _workers(pools: Mapping[str, PoolStatus]) -> str:
    running = sum(pool.running for pool in pools.values())
    wanted = sum(pool.wanted for pool in pools.values())
    return f"{running}/{wanted}"


def _age(created_at: str) -> str:
    from datetime import UTC, datetime

    try:
        age = datetime.now(UTC) - datetime.fromisoformat(created_at)
    except (ValueError, TypeError):
        return "-"
    return format_duration(max(0.0, age.total_seconds()))
