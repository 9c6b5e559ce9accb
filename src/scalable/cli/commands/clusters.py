"""Commands for existing clusters: list, status, explain, connect, scale, down, prune."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from scalable.cli.clusters import render_budget, render_list, render_status
from scalable.cli.options import (
    Command,
    Removal,
    confirm,
    manifest_argument,
    name_argument,
    optional_name_argument,
    read_counts,
    removal_options,
    target_option,
)
from scalable.cli.output import Output, Result, naming
from scalable.clusters.connecting import snippet
from scalable.clusters.control import beyond_most, explain, refuse_gone, scale, set_budget
from scalable.clusters.discovery import only_cluster, status
from scalable.clusters.ending import Remains, end, prune
from scalable.errors import ClusterError, ProviderError, UnknownClusterError
from scalable.protocol.addresses import LOOPBACK
from scalable.providers.registry import provider_traits
from scalable.records import AccessFile, ClusterDirectory, find, status_of, write_access_file
from scalable.records.directory import remember
from scalable.session.request import Request
from scalable.units import counted
from scalable.views.explanation import State

# list ---------------------------------------------------------------------------------------------

#: Exit code when a plug-in or a record could not be read.
INCOMPLETE = 3


@click.command("list", cls=Command)
def list_command(*, output: Output) -> Result:
    """List all clusters with their state.
    These are detached clusters, clusters embedded in running processes, and resources without a
    record.

    The exit code is 3 if a plugin or a record cannot be read. The others are still listed.
    """
    from scalable.clusters.discovery import list_clusters

    listing = list_clusters()
    for error in listing.errors:
        output.warn(error)
    data = {"clusters": [status.to_dict() for status in listing], "errors": list(listing.errors)}
    return Result(render_list(listing), data, exit_code=INCOMPLETE if listing.errors else 0)


# status -------------------------------------------------------------------------------------------


@click.command(cls=Command)
@optional_name_argument
def status_command(name: str | None) -> Result:
    """Show the state of a cluster, its pools and its managers.
    NAME may be left out if there is only one cluster.
    """
    found = status(name or only_cluster())
    return Result(render_status(found), found.to_dict())


# explain ------------------------------------------------------------------------------------------


@click.command(cls=Command)
@optional_name_argument
@click.argument("about", required=False, metavar="[TAG|TASK]")
def explain_command(name: str | None, about: str | None, *, output: Output) -> Result:
    """Explain why tasks and pools wait, or why a task failed.
    NAME is the name of a running cluster, or of a session in another of your processes, or of the
    session's run. It may be left out if there is only one. With TAG, explain this pool and tasks
    waiting for it. TASK is a task's key, a prefix of the key, or a task name. Without TAG and TASK,
    explain all pools, and all queued and blocked tasks.
    """
    cluster, about = _cluster_and_subject(name, about)
    if cluster != name:
        output.note(f"cluster {cluster!r}:")
    found = explain(cluster, about)
    for task in found.tasks:
        if task.state == State.UNKNOWN:
            raise ClusterError(task.sentence, hint=task.advice)
    lines: list[str] = []
    for each in found:
        lines.append(f"{each.sentence[:1].upper()}{each.sentence[1:]}.")
        advice = f"  -> {each.advice}"
        lines += [advice] if each.advice and advice not in lines else []
    lines += [] if found.tasks else ["No task is queued or blocked."]
    text = "".join(f"{' '.join(line.splitlines())}\n" for line in lines)
    return Result(text, {"cluster": cluster, **found.to_dict()})


def _cluster_and_subject(name: str | None, about: str | None) -> tuple[str, str | None]:
    """Return the cluster and what to explain. A name of no cluster is a subject in the only one."""
    if name is None:
        return only_cluster(), about
    if about is None:
        try:
            find(name)
        except UnknownClusterError:
            with suppress(ClusterError):
                return only_cluster(), name
            raise
    return name, about


# connect ------------------------------------------------------------------------------------------


@click.command(cls=Command)
@name_argument
@click.option(
    "--export",
    "file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write a file with the address and the credentials, for clients and managers elsewhere. "
    "Anyone with this file can use the cluster.",
)
def connect_command(name: str, *, file: Path | None, output: Output) -> Result:
    """Show how to connect to a cluster from Python."""
    directory = find(name)
    refuse_gone(directory)
    # An unreachable cluster or unusable credentials fail here, not after the paste.
    address = AccessFile.of(directory).address
    if file is None:
        text, page = snippet(directory), (directory.scheduler() or {}).get("dashboard")
        return Result(text, {"address": address, "dashboard": page, "snippet": text})
    with naming(file):
        write_access_file(file, directory)
    if f"//{LOOPBACK}:" in address:
        output.warn(
            f"only this machine can reach {address}: set interface in the target to change this"
        )
    # `bundle` is the former key, for programs that read it.
    data = {"address": address, "access_file": str(file), "bundle": str(file)}
    return Result(f"wrote {file}: keep it secret\n", data)


# scale --------------------------------------------------------------------------------------------


@click.command(cls=Command)
@optional_name_argument
@click.argument("counts", nargs=-1, metavar="[TAG=N]...")
@click.option(
    "--yes", is_flag=True, help="Do not ask for confirmation, even above the target's limit."
)
@click.option(
    "--budget",
    type=click.FloatRange(min=0, min_open=True),
    metavar="AMOUNT",
    help="Set the total amount that the cluster may spend.",
)
def scale_command(
    name: str | None, counts: tuple[str, ...], *, yes: bool, budget: float | None
) -> Result:
    """Set the numbers of workers, or the cluster's budget.
    NAME may be left out if there is only one cluster. Counts are absolute; 0 stops all
    workers of a pool. The command returns at once. Workers start and stop in the background, and
    busy workers finish their tasks first.
    """
    if name is not None and "=" in name:  # no cluster has such a name
        counts, name = (name, *counts), None
    wanted = read_counts(counts)
    if not wanted and budget is None:
        raise click.UsageError("give TAG=N, --budget, or both")
    name = name or only_cluster()
    if beyond := beyond_most(name, wanted):
        confirm("A total of {} workers exceeds {}. Start them?".format(*beyond), yes=yes)
    lines, data = list[str](), dict[str, Any]()
    if budget is not None:
        data["cost"] = set_budget(name, budget)
        lines.append(render_budget(data["cost"], budget))
    adaptive = status_of(find(name), time.time()).adaptive if wanted else {}
    before, after = scale(name, wanted) if wanted else ({}, {})
    for tag, count in after.items():
        fixed = "; it no longer follows its load" if tag in adaptive else ""
        lines.append(f"{tag}: {before.get(tag, 0)} -> {count}{fixed}")
    data |= {"before": before, "after": after}
    return Result("\n".join(lines) + "\n", data)


# down ---------------------------------------------------------------------------------------------


@click.command(cls=Command)
@optional_name_argument
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def down_command(name: str | None, *, yes: bool) -> Result:
    """Stop a cluster: its workers, managers and scheduler.
    A cluster that is already gone is not an error. Results that have not been fetched are lost.
    """
    if name is None:
        raise click.UsageError("name the cluster to delete: `scalable list` shows the clusters")
    try:
        directory = find(name)
        known_as, condition = _described(directory)
    except (UnknownClusterError, FileNotFoundError) as error:
        known = getattr(error, "hint", None)
        text = f"there is no cluster {name!r}" + (f" ({known})" if known else "")
        return Result(f"{text}: nothing to do\n", {"name": name, "id": None, "ended": False})
    confirm(f"Delete cluster {known_as!r} ({condition})?", yes=yes)
    ended = end(directory.id)
    words = "was deleted" if ended else "was already gone"
    data = {"name": known_as, "id": directory.id, "ended": ended}
    return Result(f"cluster {known_as!r} {words}\n", data)


def _described(directory: ClusterDirectory) -> tuple[str, str]:
    """Return a cluster's name and condition, or its id and the reason why they are unknown."""
    name = directory.id
    try:
        name = directory.record().name
        status = status_of(directory, time.time())
    except FileNotFoundError:
        raise
    except (ClusterError, OSError) as error:
        return name, str(error)
    running = sum(pool.running for pool in status.pools.values())
    return name, f"{status.state}, {counted(running, 'worker')}"


# prune --------------------------------------------------------------------------------------------


@click.command(cls=Command)
@manifest_argument
@target_option("Also search the site of this target, such as its region.")
@removal_options
def prune_command(
    manifest: Path | None, target: str | None, *, removal: Removal, output: Output
) -> Result:
    """Remove the remains of clusters that no longer exist.
    The command lists them, and removes them after a confirmation. In a cloud, it searches the
    region set in the shell, and regions used from this machine in the last 30 days.

    The exit code is 4 if some remains could not be removed. The others are still removed.
    """

    def approve(found: Sequence[Remains]) -> None:
        if found:
            question = f"Remove the remains of {counted(len(found), 'cluster')}?"
            removal.approved(_render(found, done=False), question, output)

    if target is not None:  # its location is examined too
        spec = (request := Request.read(manifest, target)).spec
        if provider_traits(spec.provider_name).remote:
            remember(spec.provider_name, request.provider.place_of(spec))
    found = prune(dry_run=removal.dry_run, warn=output.warn, approve=approve)
    for one in found:
        if one.error is not None:
            output.warn(f"{one.name or one.id} could not be removed: {one.error}")
    data = {"done": not removal.dry_run, "found": [asdict(one) for one in found]}
    code = ProviderError.exit_code if any(one.error for one in found) else 0
    return Result(_render(found, done=not removal.dry_run), data, exit_code=code)


def _render(found: Sequence[Remains], *, done: bool) -> str:
    lines = [
        f"  {one.kind:8} {one.name or '-'} ({one.id[:8]}): {one.action}\n"
        for one in found
        if one.error is None
    ]
    if not found:
        return "nothing to remove\n"
    return "".join(["removed:\n" if done else "would be removed:\n", *lines]) if lines else "\n"
