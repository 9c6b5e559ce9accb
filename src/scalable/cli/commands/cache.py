"""``scalable cache``: the cached results."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import click

from scalable import settings
from scalable.cache.checkpoints import Checkpoints, CheckpointSizes, checkpoint_directory
from scalable.cache.differences import differences, parts_by_group, why_missed
from scalable.cache.entries import Entry
from scalable.cache.key import CallKey
from scalable.cache.store import Pruned, ResultStore, Stored, Usage
from scalable.cli import options
from scalable.cli.output import Output, Result
from scalable.errors import ClusterError
from scalable.harmless import harmless
from scalable.session.request import Request
from scalable.units import counted, format_bytes, format_duration
from scalable.views.tables import fitted, text_table

#: Number of shown digits of a key, usually enough to name it.
_SHORT: Final = 12
#: Width in columns: keys are whole, so that they can be copied.
_WIDTH = 10_000
_HEADER = ("function", "key", "task", "tag", "size", "saves", "age", "last use")
#: Maximum number of characters of names in the table.
_FUNCTION, _NAME = 48, 16
#: Maximum number of parts of one kind that ``why`` shows.
_SHOWN = 12
#: Maximum number of results that are listed before they are removed.
_LISTED = 20
#: A key, or enough of its first digits to name it.
_KEY: Final = re.compile("[0-9a-fA-F]{4,64}")
#: A cached result as plain JSON values.
Row = Mapping[str, Any]
#: Sort keys of rows, by name of the order.
_ORDERS: Final[Mapping[str, Callable[[Row], Any]]] = {
    "newest": lambda row: row["age_s"],
    "used": lambda row: row["unused_s"],
    "size": lambda row: -row["size"],
    "cost": lambda row: -row["cost_s"],
    "function": lambda row: (row["function"], row["age_s"]),
}


@click.group(cls=options.Group, no_args_is_help=False)
def command() -> None:
    """List, explain or remove cached results."""


@contextmanager
def _reading(store: ResultStore, verb: str = "read") -> Iterator[None]:
    """Convert an OSError into a ClusterError that names the store's URL."""
    try:
        yield
    except OSError as error:
        raise ClusterError(
            f"results in {store.url} cannot be {verb}: {error.strerror or error}",
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


# list ---------------------------------------------------------------------------------------------


@command.command("list")
@click.option(
    "--sort", type=click.Choice(list(_ORDERS)), default="newest", help="Order of the rows."
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
    found = _described(store)
    rows = [
        row
        for row in _rows_of(found)
        if (function is None or _is_named(row["function"], function))
        and (task is None or row["task"] == task)
    ]
    rows.sort(key=_ORDERS[sort])
    text, data = _listing(rows, limit, [one for one, entry in found.items() if entry is None])
    if not rows:
        text = f"{store.url} contains no such result\n" if found else f"{store.url} is empty\n"
    return Result(text, {"store": store.url, **data})


def _described(store: ResultStore) -> dict[Stored, Entry | None]:
    """Return all results, with None for the unreadable ones."""
    with _reading(store):
        return {one: store.described(one) for one in store.stored()}


def _rows_of(found: Mapping[Stored, Entry | None]) -> list[Row]:
    """Return the readable results, with ages in seconds."""
    now = time.time()
    return [
        {
            "key": one.key,
            **{name: getattr(entry, name) for name in ("function", "task", "tag", "run")},
            "size": one.size,
            "cost_s": entry.cost_s,
            "age_s": max(0.0, now - entry.created),
            "unused_s": max(0.0, now - one.used),
        }
        for one, entry in found.items()
        if entry is not None
    ]


def _is_named(function: str, name: str) -> bool:
    """Return whether ``name`` is a function's full dotted name or the last parts of it."""
    return function == name or function.endswith(f".{name}")


def _listing(
    rows: Sequence[Row], limit: int | None, unreadable: Sequence[Stored]
) -> tuple[str, dict[str, Any]]:
    """Return results with totals, and the number of unreadable entries: a table, and values."""
    shown = rows[:limit]
    size, cost_s = (sum(row[name] for row in rows) for name in ("size", "cost_s"))
    cells = [
        (
            fitted(row["function"], _FUNCTION),
            row["key"][:_SHORT],
            fitted(row["task"], _NAME),
            fitted(row["tag"], _NAME),
            format_bytes(row["size"]),
            *(format_duration(row[name]) for name in ("cost_s", "age_s", "unused_s")),
        )
        for row in shown
    ]
    lines = text_table(_HEADER, cells).lines(_WIDTH)
    if len(shown) < len(rows):
        lines.append(f"  and {counted(len(rows) - len(shown), 'more result')}")
    lines.append(
        f"{counted(len(rows), 'result')}, {format_bytes(size)}, computed in "
        f"{format_duration(cost_s)}"
    )
    if unreadable:
        entries = counted(len(unreadable), "entry", "entries")
        lines.append(f"{entries} cannot be read: `scalable cache rm {unreadable[0].key[:_SHORT]}`")
    total = {"results": len(rows), "size": size, "cost_s": cost_s, "unreadable": len(unreadable)}
    return "\n".join(lines) + "\n", {"results": list(shown), "sum": total}


# why ----------------------------------------------------------------------------------------------


@command.command()
@click.argument("call", metavar="TASK")
@_store_options
def why(call: str, *, store: ResultStore) -> Result:
    """Show the parts of a task's cache key, and why there was no cache hit.
    TASK is a key or its prefix, or the name of a function, which selects its latest result. The
    key is compared with that of the newest earlier result of the same function that has equal
    arguments, or else with that of the newest one.
    """
    entries = [entry for entry in _described(store).values() if entry is not None]
    entry = _called(call, entries)
    with _reading(store):
        nearest = store.earlier(CallKey(entry.key, entry.parts, entry.function), entry.created)
    number = sum(one.function == entry.function for one in entries)
    text, data = _explanation(entry, nearest, number)
    return Result(text, {"store": store.url, **data})


def _key_of(word: str, keys: Iterable[str]) -> str:
    """Return the only key that begins with a word, or raise ClusterError."""
    is_start = _KEY.fullmatch(word) is not None
    found = sorted(key for key in keys if is_start and key.startswith(word.lower()))
    if not found:
        raise ClusterError(
            f"no result has the key {word}", hint="`scalable cache list` lists the keys"
        )
    if len(found) > 1:
        raise ClusterError(
            f"{len(found)} results have keys that start with {word}",
            hint=f"write more digits, such as {found[0][: max(_SHORT, len(word) + 4)]}",
        )
    return found[0]


def _called(word: str, entries: Sequence[Entry]) -> Entry:
    """Return the result with a key prefix or a function's latest result, or raise ClusterError."""
    own = [one for one in entries if _is_named(one.function, word)]
    functions = sorted({one.function for one in own})
    if word in functions:
        own, functions = [one for one in own if one.function == word], [word]
    if len(functions) > 1:
        raise ClusterError(
            f"{len(functions)} functions match {word}", hint=f"write {' or '.join(functions[:5])}"
        )
    if own:
        return max(own, key=lambda one: one.created)
    if not _KEY.fullmatch(word):
        raise ClusterError(
            f"no results of function {word!r} are stored",
            hint="`scalable cache list` lists functions and keys",
        )
    by_key = {one.key: one for one in entries}
    return by_key[_key_of(word, by_key)]


def _explanation(entry: Entry, nearest: Entry | None, number: int) -> tuple[str, dict[str, Any]]:
    """Return a key's parts, and how they differ from an earlier result's.
    ``number`` is the number of results of the function.
    """
    before = None if nearest is None else nearest.parts
    found = () if before is None else differences(entry.function, entry.parts, before)
    facts = ("key", "function", "task", "tag", "run", "host", "created", "cost_s")
    data: dict[str, Any] = {name: getattr(entry, name) for name in facts}
    data |= {
        "results_of_function": number,
        # Values of environment variables may be secrets.
        "parts": {
            name: "" if name.startswith("environment:") else text
            for name, text in sorted(entry.parts.items())
        },
        "why": why_missed(entry.function, entry.parts, before),
        "nearest": None
        if nearest is None
        else {
            "key": nearest.key,
            "created": nearest.created,
            "differences": [{"part": one.part, "sentence": one.sentence} for one in found],
        },
    }
    told = (("task", entry.task), ("tag", entry.tag), ("run", entry.run), ("on", entry.host))
    lines = [
        f"{entry.function}, key {entry.key[:_SHORT]}",
        f"  stored {_age(entry)} ago, ran {format_duration(entry.cost_s)}"
        + "".join(f", {name} {text}" for name, text in told if text),
        "",
        "Parts of the key:",
    ]
    for group, texts in parts_by_group(entry.parts).items():
        if group != "function":  # its code and its name are reported above
            more = f" and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
            lines.append(f"  {group:12} {', '.join(texts[:_SHOWN])}{more}")
    if nearest is None:
        last = "There is no earlier result of this function."
    else:
        of = f", one of {counted(number - 1, 'other result')}" if number > 2 else ""
        earlier = f"{nearest.key[:_SHORT]}, stored {_age(nearest)} ago{of}"
        last = f"It differs from {earlier}:" if found else f"Its parts are those of {earlier}."
    lines += ["", last, *(f"  {one.sentence}" for one in found)]
    return "\n".join(map(_aligned, lines)) + "\n", data


def _age(entry: Entry) -> str:
    return format_duration(max(0.0, time.time() - entry.created))


# rm and prune -------------------------------------------------------------------------------------


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
    chosen = _described(store)
    if keys:
        wanted = {_key_of(word, [one.key for one in chosen]) for word in keys}
        chosen = {one: entry for one, entry in chosen.items() if one.key in wanted}
    elif function is not None:
        chosen = {
            one: entry
            for one, entry in chosen.items()
            if entry is not None and _is_named(entry.function, function)
        }
    removed, text = len(chosen), "nothing to remove\n"
    if chosen:
        unreadable = [one for one, entry in chosen.items() if entry is None]
        rows, _ = _listing(_rows_of(chosen), _LISTED, unreadable)
        results = counted(len(chosen), "result")
        text = f"{rows}{results} would be removed\n"
        size = format_bytes(Usage.of(chosen).size)
        if removal.approved(rows, f"Remove {results} of {size} from {store.url}?", output):
            with _reading(store, "removed"):
                removed = store.remove(chosen)
            text = f"removed {counted(removed, 'result')}\n" if removed else "nothing was removed\n"
    data = {"removed": removed, "keys": [one.key for one in chosen], "dry_run": removal.dry_run}
    return Result(text, {"store": store.url, **data})


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
    The command counts these results, and removes them after a confirmation, the least recently used
    first. It also removes files that killed processes or other releases of scalable have left and,
    with --max-age, unused checkpoints that have not changed for that long.
    """

    def collect(*, dry_run: bool) -> tuple[Pruned, Usage, CheckpointSizes]:
        checkpoints = CheckpointSizes()
        with _reading(store, "removed"):
            if max_age is not None:
                place = Checkpoints(checkpoint_directory(store.url))
                checkpoints = place.collect(max_age, dry_run=dry_run)
            pruned = store.prune(limit=limit, max_age_s=max_age, dry_run=dry_run)
            others = store.of_other_layout()
            if not dry_run:
                store.remove(others)
        return pruned, Usage.of(others), checkpoints

    preview = removal.dry_run or not removal.yes
    found = collect(dry_run=preview)
    lines, text = _collection(store.url, *found, dry_run=preview)
    if preview and not removal.dry_run:
        if lines:
            removal.approved(text, f"Remove {' and '.join(lines)} from {store.url}?", output)
        found = collect(dry_run=False)
        _, text = _collection(store.url, *found, dry_run=False)
    pruned, others, checkpoints = found
    data = {"store": store.url, "dry_run": removal.dry_run, **asdict(pruned)}
    data |= {"other_releases": asdict(others), "checkpoints": asdict(checkpoints)}
    return Result(text, data)


def _collection(
    url: str, found: Pruned, others: Usage, checkpoints: CheckpointSizes, *, dry_run: bool
) -> tuple[list[str], str]:
    """Return what was or would be removed, a line for each kind, and what stays, in words."""
    kinds = (
        (found.removed, "result", f" of {format_bytes(found.size)}"),
        (checkpoints.number, "checkpoint", f" of {format_bytes(checkpoints.size)}"),
        (found.leftovers, "file", " of killed processes"),
        (others.entries, "file", f" of other releases ({format_bytes(others.size)})"),
    )
    lines = [f"{counted(number, noun)}{size}" for number, noun, size in kinds if number]
    verb = "would remove" if dry_run else "removed"
    rest = "would stay" if dry_run else "stays" if found.left.entries == 1 else "stay"
    shown = [f"{verb} {line}" for line in lines] or ["nothing to remove"]
    left = f"{counted(found.left.entries, 'result')} of {format_bytes(found.left.size)}"
    return lines, "\n".join([*shown, f"{left} {rest} in {url}"]) + "\n"


def _aligned(line: str) -> str:
    """Return a harmless line that keeps its spaces."""
    return harmless(line).replace("\n", " ")
