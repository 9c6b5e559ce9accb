"""Arguments and options that several commands share."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from scalable import settings
from scalable.cli.output import FORMS, open_output
from scalable.errors import ScalableError

Command = TypeVar("Command", bound=Callable[..., Any])


def complete_target(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Return the targets of the manifest for shell completion."""
    from scalable.manifest import read_targets

    try:
        # An option without its value stops click's parsing; the arguments are then in ctx.args.
        known = (ctx.params.get(name) for name in ("manifest_file", "manifest"))
        manifest = next(filter(None, known), None) or next(iter(ctx.args), None)
        names = read_targets(settings.manifest_path(manifest))
    except ScalableError:
        return []
    return [name for name in names if name.startswith(incomplete)]


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


def target_option(help_text: str) -> Callable[[Command], Command]:
    """Add ``--target``."""
    return click.option("--target", metavar="NAME", help=help_text, shell_complete=complete_target)


def output_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--format``, ``--output`` and ``--debug``, and pass an ``output`` to the command."""
    return _output_options(command)


def output_options_with(
    extra: str, description: str
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add the options of :func:`output_options` with a further format ``extra``.
    The command also receives ``form`` and ``destination`` as given.
    """
    return functools.partial(_output_options, extra=extra, description=description)


def _output_options(
    command: Callable[..., Any], *, extra: str | None = None, description: str = ""
) -> Callable[..., Any]:
    forms = FORMS if extra is None else (*FORMS, extra)
    more = f", or {description}" if description else ""

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
    def with_output(*, form: str | None, destination: Path | None, **given: Any) -> Any:
        if extra is not None:
            given |= {"form": form, "destination": destination}
            form = "human" if form == extra else form
        return command(output=open_output(form, destination), **given)

    return with_output
