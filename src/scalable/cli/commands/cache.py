"""``scalable cache``: the cached results."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import click

from scalable import settings
from scalable.cache.checkpoints import Checkpoints, CheckpointSizes, checkpoint_directory
from scalable.cache.outcomes import Collected
from scalable.cache.store import ResultStore
from scalable.cli import cached, options
from scalable.cli.output import Output, Result
from scalable.errors import ClusterError
from scalable.runs.report.table import on_one_line
from scalable.session.request import Request
from scalable.units import counted, format_bytes

#: Maximum number of results that are listed before they are removed.
_LISTED = 20
#: Kind of an error of the store, not of the entry, which may be sound.
_UNREAD = "unusable"


@click.group(cls=options.Group, no_args_is_help=False)
def command() -> None:
    """List, explain, check or remove cached results."""


@contextmanager
def _changing(store: ResultStore) -> Iterator[None]:
    """Convert an OSError into a ClusterError that names the store's URL."""
    try:
        yield
    except OSError as error:
        raise ClusterError(
            f"results in {store.url} cannot be removed: {error.strerror or error}",
            hint="check who owns the directory, and whether it is mounted read-only",
        ) from error


def _store(place: str | None, manifest_file: Path | None, target: str | None) -> ResultStore:
    """Return the given store, or that of a manifest, or the user's own without a manifest."""
    from scalable.manifest import read_targets

    file = settings.manifest_path(manifest_file)
    if place or (manifest_file is None and target is None and not file.exists()):
        return ResultStore(place or settings.results_dir())
    names = [] if target else list(read_targets(file))
    chosen = names if len(names) > 1 else [target]
    urls = {Request.read(file, name).spec.results_url for name in chosen}
    if len(urls) > 1:
        raise ClusterError(
            f"the targets of {file} have {len(urls)} different caches: "
            f"{', '.join(sorted(url or 'your own directory' for url in urls))}",
            hint="choose one with --target",
        )
    return ResultStore(urls.pop() or settings.results_dir())


_store_options = options.combined(
    "store",
    _store,
    click.option(
        "--store",
        "place",
        metavar="DIR",
        help="Directory or URL of the store; by default the manifest's, or else your own.",
    ),
    options.manifest_option,
    options.target_option("The target whose store is used, if targets have different stores."),
)


@command.command("list")
@click.option(
    "--sort", type=click.Choice(list(cached.ORDERS)), default="newest", help="Order of the rows."
)
@click.option("--function", metavar="NAME", help="List only results of this function.")
@click.option("--task", metavar="NAME", help="List only results of this task.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Show only the first N.")
@_store_options
def list_results(
    *, sort: str, function: str | None, task: str | None, limit: int | None, store: ResultStore
) -> Result:
    """List the cached results, by default the newest first.
    The column "saves" shows the running time that a cache hit saves.
    """
    items = list(store.inventory())
    rows = [
        row
        for row in cached.rows_of(items, time.time())
        if (function is None or cached.is_named(row["function"], function))
        and (task is None or row["task"] == task)
    ]
    rows.sort(key=cached.ORDERS[sort])
    text, data = cached.listing(rows, limit, sum(item.entry is None for item in items))
    if not rows:
        text = f"{store.url} contains no such result\n" if items else f"{store.url} is empty\n"
    return Result(text, {"store": store.url, **data})


@command.command()
@click.argument("call", metavar="TASK")
@_store_options
def why(call: str, *, store: ResultStore) -> Result:
    """Show the parts of a task's cache key, and why there was no cache hit.
    TASK is a key or its prefix, or the name of a function, which selects its latest result. The
    key is compared with that of the most similar earlier result of the same function.
    """
    entries = [item.entry for item in store.inventory() if item.entry is not None]
    text, data = cached.explanation(cached.called(call, entries), entries, time.time())
    return Result(text, {"store": store.url, **data})


@command.command("rm")
@click.argument("keys", metavar="[KEY]...", nargs=-1)
@click.option("--function", metavar="NAME", help="Remove all results of this function.")
@click.option("--all", "everything", is_flag=True, help="Remove all results.")
@options.removal_options
@_store_options
def remove(
    keys: tuple[str, ...],
    *,
    function: str | None,
    everything: bool,
    removal: options.Removal,
    store: ResultStore,
    output: Output,
) -> Result:
    """Remove results, by their keys, by function, or all.
    A unique prefix of a key is enough. Processes that are reading a result are not interrupted.
    """
    if bool(keys) + (function is not None) + everything != 1:
        raise click.UsageError("give keys, --function NAME or --all")
    chosen = list(store.inventory())
    if keys:
        wanted = {cached.key_of(word, [item.key for item in chosen]) for word in keys}
        chosen = [item for item in chosen if item.key in wanted]
    elif function is not None:
        chosen = [
            item
            for item in chosen
            if item.entry is not None and cached.is_named(item.entry.function, function)
        ]
    removed, text = len(chosen), "nothing to remove\n"
    if chosen:
        unreadable = sum(item.entry is None for item in chosen)
        rows, _ = cached.listing(cached.rows_of(chosen, time.time()), _LISTED, unreadable)
        results = counted(len(chosen), "result")
        text = f"{rows}{results} would be removed\n"
        size = format_bytes(sum(item.size for item in chosen))
        if removal.approved(rows, f"Remove {results} of {size} from {store.url}?", output):
            with _changing(store):
                removed = store.remove(item.key for item in chosen)
            text = f"removed {counted(removed, 'result')}\n" if removed else "nothing was removed\n"
    data = {"removed": removed, "keys": [item.key for item in chosen], "dry_run": removal.dry_run}
    return Result(text, {"store": store.url, **data})


@command.command()
@click.option("--remove", "removing", is_flag=True, help="Remove the damaged entries.")
@options.removal_options
@_store_options
def verify(
    *, removing: bool, removal: options.Removal, store: ResultStore, output: Output
) -> Result:
    """Read all entries, and compare them with their digests.
    The exit code is 1 if an entry is damaged, even if it was removed. An entry that could not be
    read because of a disk or network error is never removed.
    """
    found = store.verify()
    lines = [f"{one.subject[: cached.SHORT]}  {one.kind}: {one.reason}" for one in found.faults]
    end = f"{len(lines)} of them damaged" if lines else "none damaged"
    entries = counted(found.entries, "entry", "entries")
    lines.append(f"{store.url}: {entries}, {format_bytes(found.size)}, {end}")
    damaged = [one.subject for one in found.faults if one.kind != _UNREAD]
    removed = 0
    if removing and damaged:
        question = f"Remove {counted(len(damaged), 'damaged entry', 'damaged entries')}?"
        if removal.approved("\n".join(lines), question, output):
            with _changing(store):
                removed = store.remove(damaged)
            lines.append(f"removed {removed} of the damaged entries")
        else:
            lines.append(f"{len(damaged)} of the damaged entries would be removed")
    faults = [{"key": f.subject, "kind": f.kind, "reason": f.reason} for f in found.faults]
    data = {"store": store.url, "entries": found.entries, "size": found.size}
    data |= {"faults": faults, "removed": removed}
    faulty = bool(found.faults)
    text = "\n".join(map(on_one_line, lines)) + "\n"
    return Result(text, data, faulty=faulty, exit_code=int(faulty))


@command.command()
@click.option("--limit", type=options.SIZE, help="Maximum total size of the results.")
@click.option("--max-age", type=options.DURATION, help="Remove results unused for this long.")
@options.removal_options
@_store_options
def prune(
    *,
    limit: int | None,
    max_age: float | None,
    removal: options.Removal,
    store: ResultStore,
    output: Output,
) -> Result:
    """Remove results until the store is within limits, such as --limit 10G --max-age 30d.
    The command counts these results, and removes them after a confirmation. It chooses them by
    last use, computing time and size. It also removes files that killed processes have left and,
    with --max-age, unused checkpoints that have not changed for that long.
    """

    def collect(*, dry_run: bool) -> tuple[Collected, CheckpointSizes]:
        checkpoints = CheckpointSizes()
        with _changing(store):
            if max_age is not None:
                place = Checkpoints(checkpoint_directory(store.url))
                checkpoints = place.collect(max_age, dry_run=dry_run)
            return store.collect(limit=limit, max_age_s=max_age, dry_run=dry_run), checkpoints

    preview = removal.dry_run or not removal.yes
    found, checkpoints = collect(dry_run=preview)
    lines, text = cached.collection(store.url, found, checkpoints, dry_run=preview)
    if preview and not removal.dry_run:
        if lines:
            removal.approved(text, f"Remove {' and '.join(lines)} from {store.url}?", output)
        found, checkpoints = collect(dry_run=False)
        _, text = cached.collection(store.url, found, checkpoints, dry_run=False)
    data = {"store": store.url, "dry_run": removal.dry_run, **asdict(found)}
    return Result(text, {**data, "checkpoints": asdict(checkpoints)})
