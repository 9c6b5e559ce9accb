"""Arguments, options and questions that several commands share, and how their help is written."""

from __future__ import annotations

import difflib
import functools
import inspect
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from scalable import settings
from scalable.cli.output import FORMS, Output, Result, open_output
from scalable.errors import ClusterError, ScalableError
from scalable.harmless import harmless
from scalable.model import names
from scalable.units import parse_bytes, parse_duration

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

#: Names of the commands in other tools, or in other versions of this one. A comma separates
#: commands that may be meant.
ELSEWHERE = {
    "attach": "manager attach",
    "cache gc": "cache prune",
    "cache list": "cache ls",
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
    """Command whose help ends with the options that all commands have."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options in two sections."""
        own: list[tuple[str, str]] = []
        shared: list[tuple[str, str]] = []
        for param in self.get_params(ctx):
            row = param.get_help_record(ctx) if isinstance(param, click.Option) else None
            if row is not None:
                (own if _GLOBAL.isdisjoint(param.opts) else shared).append(row)
        for title, rows in (("Options", own), ("Global options", shared)):
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


class Size(click.ParamType[int]):
    """Click type of a size such as ``10G``, converted to bytes."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return parse_bytes(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


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


def manifest_argument(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the manifest as ``-f/--manifest`` and as an optional first argument."""

    @click.argument("manifest", required=False, type=_A_PATH)
    @manifest_option
    @functools.wraps(command)
    def with_manifest(
        *args: Any, manifest: Path | None, manifest_file: Path | None, **given: Any
    ) -> Any:
        if None not in (manifest, manifest_file):
            raise click.UsageError(f"two manifests: {manifest} and {manifest_file}; give one")
        return command(*args, manifest=manifest or manifest_file, **given)

    return with_manifest


def target_option(help_text: str) -> Callable[[Decorated], Decorated]:
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
        if fault := names.TAG.fault(tag):
            raise click.UsageError(f"{word!r} is not a count: {fault}")
        if tag in counts:
            raise click.UsageError(f"{word!r}: {tag!r} is given twice")
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


def removal_options(command: Decorated) -> Decorated:
    """Add ``--yes`` and ``--dry-run``."""
    dry_run = click.option("--dry-run", is_flag=True, help="Show what would be removed, and end.")
    return click.option("--yes", is_flag=True, help="Remove without asking.")(dry_run(command))


def confirm_removal(listing: str, question: str, output: Output, *, yes: bool) -> None:
    """Show what would be removed and ask for confirmation, as :func:`confirm` does."""
    if not yes:
        output.note(listing.rstrip("\n"))
    confirm(question, yes=yes, otherwise=" Nothing was removed.")


# Output -------------------------------------------------------------------------------------------


def output_options(
    command: Callable[..., Any] | None = None, *, extra: str | None = None, description: str = ""
) -> Callable[..., Any]:
    """Add ``--format``, ``--output`` and ``--debug``, and show the result of the command.
    The command gets an ``output`` if it has a parameter of that name. With a further format
    ``extra``, it also gets ``form`` and ``destination`` as given.
    """
    if command is None:
        return functools.partial(output_options, extra=extra, description=description)
    forms = FORMS if extra is None else (*FORMS, extra)
    more = f", or {description}" if description else ""
    speaks = "output" in inspect.signature(command).parameters

    @click.option(
        "--format",
        "form",
        type=click.Choice(forms),
        help=f"Output format: text for people (the default), one JSON value, or only errors{more}.",
    )
    @click.option(
        "--output",
        "-o",
        "destination",
        type=click.Path(path_type=Path, allow_dash=True),
        metavar="FILE",
        help="Write the output to a file. The suffix .json selects JSON.",
    )
    @click.option(
        "--debug",
        is_flag=True,
        expose_value=False,
        help="Show the traceback of an error (also with SCALABLE_DEBUG=1).",
    )
    @functools.wraps(command)
    def with_output(*args: Any, form: str | None, destination: Path | None, **given: Any) -> int:
        if extra is not None:
            given |= {"form": form, "destination": destination}
            form = "human" if form == extra else form
        output = open_output(form, destination)
        if speaks:
            given["output"] = output
        made: Result | int | None = command(*args, **given)
        if isinstance(made, Result):
            output.show(made)
            return made.exit_code
        return made or 0

    return with_output
