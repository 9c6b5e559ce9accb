"""``scalable cache``: the cached results."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from scalable import settings
from scalable.cache.checkpoints import Checkpoints, CheckpointSizes, checkpoint_directory
from scalable.cache.inventory import nearest_earlier
from scalable.cache.outcomes import Collected, Usage
from scalable.cache.store import ResultStore
from scalable.cli.cached import (
    ORDERS,
    called,
    collected_lines,
    is_named,
    keys_of,
    render_collected,
    render_rows,
    render_verified,
    render_why,
    rows_data,
    rows_of,
    why_data,
)
from scalable.cli.options import (
    Duration,
    Group,
    Size,
    confirm_removal,
    manifest_option,
    output_options,
    removal_options,
    target_option,
)
from scalable.cli.output import VERSION, Output, Result
from scalable.errors import ClusterError
from scalable.session.request import Request
from scalable.units import counted, format_bytes

if TYPE_CHECKING:
    from scalable.cache.inventory import Item

#: Maximum number of results that are listed before they are removed.
_LISTED = 20
#: Exit code of ``verify`` when an entry is faulty.
_FAULTY = 1
#: Kind of an error of the store, not of the entry, which may be sound.
_UNREAD = "unusable"


@click.group(cls=Group, no_args_is_help=False)
def command() -> None:
    """List, explain, check or remove cached results."""


@contextmanager
def _changing(store: ResultStore) -> Iterator[None]:
    """Convert an OSError into a ClusterError that names the store's URL."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ClusterError(
            f"results in {store.url} cannot be removed: {error.strerror or error}",
            hint="see who owns the directory, and whether it is mounted read-only",
        ) from error


def _store_options(verb: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options for choosing a store, and pass a ``store`` to the command."""

    @click.option(
        "--store",
        "place",
        metavar="DIR",
        help="Directory or URL of the store; by default that of the manifest, or else your own.",
    )
    @manifest_option
    @target_option("The target whose store it is, where targets have different ones.")
    @functools.wraps(verb)
    def with_store(
        *args: Any, place: str | None, manifest_file: Path | None, target: str | None, **given: Any
    ) -> Any:
        return verb(*args, store=ResultStore(place or _url(manifest_file, target)), **given)

    return with_store


def _url(manifest: Path | None, target: str | None) -> str:
    """Return the URL of a manifest's results, or of the user's own results without a manifest."""
    from scalable.manifest import read_targets

    file = settings.manifest_path(manifest)
    if manifest is None and target is None and not file.exists():
        return str(settings.results_dir())
    targets = [target] if target else list(read_targets(file))
    if len(targets) < 2:
        urls = {Request.read(file, target).spec.results_url}
    else:
        urls = {Request.read(file, name).spec.results_url for name in targets}
    if len(urls) > 1:
        raise ClusterError(
            f"the targets of {file} have {len(urls)} different caches: "
            f"{', '.join(sorted(url or 'your own directory' for url in urls))}",
            hint="choose one with --target",
        )
    return urls.pop() or str(settings.results_dir())


@command.command("ls")
@click.option(
    "--sort", type=click.Choice(list(ORDERS)), default="newest", help="Order of the rows."
)
@click.option("--function", metavar="NAME", help="Only results of a function.")
@click.option("--task", metavar="NAME", help="Only results of a task.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Show the first N rows.")
@_store_options
@output_options
def list_results(
    *,
    sort: str,
    function: str | None,
    task: str | None,
    limit: int | None,
    store: ResultStore,
) -> Result:
    """List the cached results, by default the newest first.
    The column "saves" shows the running time that a cache hit saves.
    """
    items = list(store.inventory())
    rows = [
        row
        for row in rows_of(items, time.time())
        if (function is None or is_named(row.function, function))
        and (task is None or row.task == task)
    ]
    rows.sort(key=ORDERS[sort])
    unreadable = sum(item.entry is None for item in items)
    data = {"version": VERSION, "store": store.url} | rows_data(rows, limit, unreadable)
    empty = f"{store.url} contains no such result\n" if items else f"{store.url} is empty\n"
    return Result(render_rows(rows, limit, unreadable) if rows else empty, data)


@command.command()
@click.argument("call", metavar="TASK")
@_store_options
@output_options
def why(call: str, *, store: ResultStore) -> Result:
    """Show the parts of a task's cache key, and why it was not a hit.
    TASK is a key, the prefix of a key, or the name of a function for its latest result. The key is
    compared with the nearest earlier result of the same function.
    """
    entries = [item.entry for item in store.inventory() if item.entry is not None]
    entry = called(call, entries)
    nearest = nearest_earlier(entry, entries)
    number = sum(one.function == entry.function for one in entries)
    data = {"version": VERSION, "store": store.url} | why_data(entry, nearest, number)
    return Result(render_why(entry, nearest, number, time.time()), data)


@command.command("rm")
@click.argument("keys", metavar="[KEY]...", nargs=-1)
@click.option("--function", metavar="NAME", help="Remove the results of a function.")
@click.option("--all", "everything", is_flag=True, help="Remove all results.")
@removal_options
@_store_options
@output_options
def remove(
    keys: tuple[str, ...],
    *,
    function: str | None,
    everything: bool,
    yes: bool,
    dry_run: bool,
    store: ResultStore,
    output: Output,
) -> Result:
    """Remove results, by their keys, by function, or all.
    A unique prefix of a key is enough. Processes that are reading a result are not interrupted.
    """
    if bool(keys) + (function is not None) + everything != 1:
        raise click.UsageError("name keys, or --function, or --all")
    chosen = _chosen(list(store.inventory()), keys, function)
    removed = 0
    text = "nothing to remove\n"
    if chosen:
        unreadable = sum(item.entry is None for item in chosen)
        rows = render_rows(rows_of(chosen, time.time()), _LISTED, unreadable)
        results = counted(len(chosen), "result")
        removed, text = len(chosen), f"{rows}{results} would be removed\n"
        if not dry_run:
            size = format_bytes(sum(item.size for item in chosen))
            confirm_removal(rows, f"Remove {results} of {size} from {store.url}?", output, yes=yes)
            with _changing(store):
                removed = store.remove(item.key for item in chosen)
            text = f"removed {counted(removed, 'result')}\n" if removed else "nothing was removed\n"
    data = {
        "version": VERSION,
        "store": store.url,
        "removed": removed,
        "keys": [item.key for item in chosen],
        "dry_run": dry_run,
    }
    return Result(text, data)


def _chosen(items: list[Item], keys: tuple[str, ...], function: str | None) -> list[Item]:
    """Return the entries of the given keys or function, or all entries."""
    if keys:
        wanted = frozenset(keys_of(keys, (item.key for item in items)))
        return [item for item in items if item.key in wanted]
    if function is None:
        return items
    return [
        item for item in items if item.entry is not None and is_named(item.entry.function, function)
    ]


@command.command()
@click.option("--remove", "removing", is_flag=True, help="Remove the damaged entries.")
@_store_options
@output_options
def verify(*, removing: bool, store: ResultStore) -> Result:
    """Read all entries, and compare them with their digests.
    The exit code is 1 if an entry is damaged, even if it was removed. An entry that could not be
    read because of a disk or network error is never removed.
    """
    found = store.verify()
    removed = None
    if removing:
        with _changing(store):
            removed = store.remove(one.subject for one in found.faults if one.kind != _UNREAD)
    data = {
        "version": VERSION,
        "store": store.url,
        "entries": found.entries,
        "size": found.size,
        "faults": [
            {"key": one.subject, "kind": one.kind, "reason": one.reason} for one in found.faults
        ],
        "removed": removed or 0,
    }
    text = render_verified(store.url, found, removed)
    faulty = bool(found.faults)
    return Result(text, data, faulty=faulty, exit_code=_FAULTY if faulty else 0)


@command.command()
@click.option("--limit", type=Size(), help="Size that all results may have.")
@click.option("--max-age", type=Duration(), help="Remove results unused for this long.")
@removal_options
@_store_options
@output_options
def prune(
    *,
    limit: int | None,
    max_age: float | None,
    yes: bool,
    dry_run: bool,
    store: ResultStore,
    output: Output,
) -> Result:
    """Remove results until the store is within limits, such as --limit 10G --max-age 30d.
    They are counted, and removed after a confirmation. Results are chosen by last use, computing
    time and size. Files of killed processes are removed too. Without limits, nothing else is
    removed. With --max-age, checkpoints that have not changed for that long and are not in use are
    removed too.
    """

    def collect(*, dry_run: bool) -> tuple[Collected, CheckpointSizes]:
        checkpoints = CheckpointSizes()
        with _changing(store):
            if max_age is not None:
                place = Checkpoints(checkpoint_directory(store.url))
                checkpoints = place.collect(max_age, dry_run=dry_run)
            try:
                found = store.collect(limit=limit, max_age_s=max_age, dry_run=dry_run)
            except FileNotFoundError:  # the store was never used
                found = Collected(0, 0, 0, Usage(0, 0))
        return found, checkpoints

    if not dry_run and not yes:
        found, checkpoints = collect(dry_run=True)
        if lines := collected_lines(found, checkpoints):
            listing = render_collected(store.url, found, checkpoints, dry_run=True)
            question = f"Remove {' and '.join(lines)} from {store.url}?"
            confirm_removal(listing, question, output, yes=yes)
    found, checkpoints = collect(dry_run=dry_run)
    data = {"version": VERSION, "store": store.url, "dry_run": dry_run} | asdict(found)
    data["checkpoints"] = asdict(checkpoints)
    text = render_collected(store.url, found, checkpoints, dry_run=dry_run)
    return Result(text, data)
