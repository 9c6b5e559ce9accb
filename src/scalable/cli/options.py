"""Arguments, options and questions that several commands share, and how their help is written."""

from __future__ import annotations

import difflib
import functools
import inspect
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from scalable import settings
from scalable.cli.output import FORMS, Output, Result
from scalable.errors import ClusterError, ScalableError
from scalable.harmless import harmless
from scalable.model import names
from scalable.model.components import MOST_WORKERS
from scalable.units import parse_bytes, parse_duration

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

#: Names of the commands in other tools, or in other versions of this one. A comma separates
#: commands that may be meant.
ELSEWHERE = {
    "attach": "manager attach",
    "cache gc": "cache prune",
    "cache ls": "cache list",
    "cache remove": "cache rm",
    "delete": "down",
    "gc": "prune",
    "kill": "down",
    "ls": "list",
    "manager resume": "manager restart",
    "ps": "list",
    "restart": "manager restart",
    "resume": "manager restart, run --resume",
    "retry": "run --resume",
    "start": "up",
    "stop": "down",
    "submit": "run",
    "watch": "top",
}
#: Options of all commands, which are last in their help.
_GLOBAL = frozenset({"--format", "--output", "--debug", "--help"})


class Command(click.Command):
    """Command with the options that all commands have, which shows the result of its function.
    The function gets an ``output`` if it has a parameter of that name. With a further format
    ``extra``, given with its description, it also gets ``form`` and ``destination``.
    """

    def __init__(self, *args: Any, extra: tuple[str, str] | None = None, **given: Any) -> None:
        super().__init__(*args, **given)
        self._extra = extra
        forms, more = (FORMS, "") if extra is None else ((*FORMS, extra[0]), f", or {extra[1]}")
        self.params += [
            click.Option(
                ["--format", "form"],
                type=click.Choice(forms),
                help="Output format: text for people (the default), one JSON value, or only "
                f"errors{more}.",
            ),
            click.Option(
                ["--output", "-o", "destination"],
                type=click.Path(path_type=Path, allow_dash=True),
                metavar="FILE",
                help="Write the output to a file. The suffix .json selects JSON.",
            ),
            click.Option(
                ["--debug"],
                is_flag=True,
                expose_value=False,
                help="Show the traceback of an error (also with SCALABLE_DEBUG=1).",
            ),
        ]

    def invoke(self, ctx: click.Context) -> int:
        """Run the function, show its result, and return the exit code."""
        assert self.callback is not None
        given = ctx.params
        output = Output(given["form"], given["destination"])
        if self._extra is None:
            del given["form"], given["destination"]
        if "output" in inspect.signature(self.callback).parameters:
            given["output"] = output
        made: Result | int | None = super().invoke(ctx)
        if isinstance(made, Result):
            output.show(made)
            return made.exit_code
        return made or 0

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options in two sections."""
        shown: dict[str, list[tuple[str, str]]] = {"Options": [], "Global options": []}
        for param in self.get_params(ctx):
            if isinstance(param, click.Option) and (row := param.get_help_record(ctx)):
                own = _GLOBAL.isdisjoint(param.opts)
                shown["Options" if own else "Global options"].append(row)
        for title, rows in shown.items():
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


class Group(click.Group):
    """Group that answers an unknown name with the command that may be meant."""

    command_class = Command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return a command, or fail with the closest name for an unknown one."""
        known, path = self.list_commands(ctx), ctx.command_path.split()[1:]
        if args[0] not in known and not ctx.resilient_parsing:
            close = [" ".join([*path, w]) for w in difflib.get_close_matches(args[0], known, 1)]
            if (elsewhere := ELSEWHERE.get(" ".join([*path, args[0]]))) is not None:
                close = elsewhere.split(", ")
            if close:
                meant = " or ".join(map(repr, close))
                ctx.fail(f"no command {args[0]!r}; did you mean {meant}?")
        return super().resolve_command(ctx, args)


class Quantity(click.ParamType[float]):
    """Click type of a quantity with a unit, converted to a number."""

    def __init__(self, name: str, parse: Callable[[Any], float]) -> None:
        self.name, self._parse = name, parse

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        try:
            return self._parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


def _positive_seconds(value: Any) -> float:
    seconds = parse_duration(value)
    if seconds <= 0:
        raise ValueError(f"{value!r} must be more than 0")
    return seconds


DURATION = Quantity("duration", _positive_seconds)
SIZE = Quantity("size", parse_bytes)


def combined(
    name: str, make: Callable[..., Any], *options: Callable[[Any], Any]
) -> Callable[[Callable[..., Any]], Any]:
    """Add options to a command, and pass what ``make`` returns for them as one argument."""
    taken = inspect.signature(make).parameters

    def decorate(command: Callable[..., Any]) -> Any:
        @functools.wraps(command)
        def with_made(*args: Any, **given: Any) -> Any:
            made = make(**{key: given.pop(key) for key in taken if key in given})
            return command(*args, **given, **{name: made})

        return functools.reduce(lambda made, add: add(made), reversed(options), with_made)

    return decorate


# Manifests and targets ----------------------------------------------------------------------------


def complete_target(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Return the targets of the manifest for shell completion."""
    from scalable.manifest import read_targets

    try:
        # An option without its value stops click's parsing; the arguments are then in ctx.args.
        known = (ctx.params.get(name) for name in ("manifest_file", "manifest"))
        manifest = next(filter(None, known), None) or next(iter(ctx.args), None)
        targets = read_targets(settings.manifest_path(manifest))
    except ScalableError:
        return []
    return [name for name in targets if name.startswith(incomplete)]


_A_PATH = click.Path(path_type=Path)

#: Decorator that adds ``-f/--manifest``, as ``manifest_file``.
manifest_option = click.option(
    "--manifest",
    "-f",
    "manifest_file",
    type=_A_PATH,
    metavar="FILE",
    help="The manifest; by default SCALABLE_MANIFEST, then scalable.yaml.",
)


def _one_manifest(manifest: Path | None, manifest_file: Path | None) -> Path | None:
    if None not in (manifest, manifest_file):
        raise click.UsageError(f"{manifest} and {manifest_file} are two manifests: give only one")
    return manifest or manifest_file


#: Decorator that adds the manifest as ``-f/--manifest`` and as an optional first argument.
manifest_argument = combined(
    "manifest",
    _one_manifest,
    click.argument("manifest", required=False, type=_A_PATH),
    manifest_option,
)


def target_option(help_text: str) -> Callable[[Any], Any]:
    """Add ``--target``."""
    return click.option("--target", metavar="NAME", help=help_text, shell_complete=complete_target)


# Clusters and runs --------------------------------------------------------------------------------


def complete_cluster(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    """Return the names of recorded clusters for shell completion."""
    from scalable.records import all_directories

    found = set()
    for directory in all_directories()[0]:
        with suppress(OSError, ClusterError):  # it may be deleted at this moment
            found.add(directory.record().name)
    return sorted(name for name in found if name.startswith(incomplete))


def complete_cluster_or_file(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[str] | list[CompletionItem]:
    """Return the names of recorded clusters, or request the shell's own path completion."""
    from click.shell_completion import CompletionItem

    found = complete_cluster(ctx, param, incomplete)
    return found or [CompletionItem(incomplete, type="file")]


#: Decorators that add the name of a cluster as an argument.
name_argument = click.argument("name", shell_complete=complete_cluster)
optional_name_argument = click.argument("name", required=False, shell_complete=complete_cluster)

#: Decorator that adds ``--runs-dir``.
runs_dir_option = click.option(
    "--runs-dir",
    type=_A_PATH,
    metavar="DIR",
    help="Directory of the runs; by default SCALABLE_RUNS_DIR, then .scalable/runs.",
)


def read_counts(words: Sequence[str]) -> dict[str, int]:
    """Parse counts written as ``tag=n``, or raise click.UsageError."""
    counts: dict[str, int] = {}
    for word in words:
        tag, separator, number = word.partition("=")
        if not (tag and separator and number.isascii() and number.isdigit()):
            raise click.UsageError(f"{word!r} is not a count: write tag=n, for example climate=3")
        if len(number) > 20 or int(number) > MOST_WORKERS:
            raise click.UsageError(f"{word:.40} is too large: the largest is {MOST_WORKERS:,}")
        if fault := names.TAG.fault(tag):
            raise click.UsageError(f"{word!r} is not a count: {fault}")
        if tag in counts:
            raise click.UsageError(f"{word!r}: {tag!r} is given twice; give each tag once")
        counts[tag] = int(number)
    return counts


# Questions ----------------------------------------------------------------------------------------


def confirm(question: str, *, yes: bool, otherwise: str = "") -> None:
    """Ask for confirmation unless ``yes``. Raises click.Abort, or UsageError without a terminal."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(
            f"{question} Standard input is not a terminal: confirm with --yes.{otherwise}"
        )
    click.confirm(harmless(question), abort=True, err=True)


@dataclass(frozen=True)
class Removal:
    """Options of a command that removes something."""

    yes: bool
    dry_run: bool

    def approved(self, listing: str, question: str, output: Output) -> bool:
        """Return whether to remove it, after a question unless ``yes``; False in a dry run."""
        if self.dry_run:
            return False
        if not self.yes:
            output.note(listing.rstrip("\n"))
        confirm(question, yes=self.yes, otherwise=" Nothing was removed.")
        return True


#: Decorator that adds ``--yes`` and ``--dry-run``, as ``removal``.
removal_options = combined(
    "removal",
    Removal,
    click.option("--yes", is_flag=True, help="Remove without asking."),
    click.option("--dry-run", is_flag=True, help="Only show what would be removed."),
)
