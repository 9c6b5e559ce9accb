"""``scalable image``: the image of the workers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from scalable.cli.clusters import Duration
from scalable.cli.options import manifest_argument, output_options, target_option
from scalable.cli.output import VERSION, Output, Result
from scalable.errors import ProviderError

if TYPE_CHECKING:
    from scalable.images.build import BuildRequest
    from scalable.images.request import ImageDraft

_TARGET = "The target whose image it is; by default SCALABLE_TARGET, local, or the only one."


@click.group(no_args_is_help=False)
def command() -> None:
    """Show or build the image that workers run in."""


@command.command()
@manifest_argument
@target_option(_TARGET)
@click.option("--component", metavar="TAG", help="The component whose image it is.")
@click.option("--base", metavar="IMAGE", help="Image to start from, in place of python:X.Y-slim.")
@click.option(
    "--context",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIRECTORY",
    help="Write the Dockerfile and what it copies to a directory, for any builder.",
)
@output_options
def show(
    manifest: Path | None,
    *,
    target: str | None,
    component: str | None,
    base: str | None,
    context: Path | None,
    output: Output,
) -> int:
    """Show a Dockerfile for the project's requirements."""
    from scalable.images.build import write_context

    draft = _draft(manifest, target, component, base)
    if context is not None:
        files = draft.files()
        write_context(context, draft.dockerfile, files)
        output.note(f"wrote {', '.join(str(context / name) for name in ('Dockerfile', *files))}")
    for sentence in draft.content.requirements.left_out:
        output.note(f"left out: {sentence}")
    output.show(Result(draft.dockerfile, _data(draft)))
    return 0


@command.command()
@manifest_argument
@target_option(_TARGET)
@click.option("--component", metavar="TAG", help="The component whose image it is.")
@click.option("--tag", metavar="NAME", help="Name of the image; by default the manifest's.")
@click.option(
    "--file",
    type=click.Path(dir_okay=False, exists=True, path_type=Path),
    metavar="DOCKERFILE",
    help="Build this Dockerfile, such as a changed one of `show`.",
)
@click.option("--base", metavar="IMAGE", help="Image to start from, in place of python:X.Y-slim.")
@click.option("--platform", metavar="TEXT", help="Platform, such as linux/amd64.")
@click.option(
    "--with",
    "builder",
    type=click.Choice(("podman", "docker")),
    help="Program that builds; by default the first that is installed.",
)
@click.option(
    "--timeout",
    type=Duration(),
    default=3600.0,
    help="Time that the build may take; by default 1h.",
)
@output_options
def build(
    manifest: Path | None,
    *,
    target: str | None,
    component: str | None,
    tag: str | None,
    file: Path | None,
    base: str | None,
    output: Output,
    **how: Any,
) -> int:
    """Build the image with docker or podman, and say how to push and name it."""
    from scalable.images.build import build_from, build_in_place, choose_builder
    from scalable.spec import names

    if file is not None and base is not None:
        raise click.UsageError("--file and --base exclude each other; give one of them")
    draft = _draft(manifest, target, component, base)
    files = draft.files()
    name = tag or draft.tag(files)
    names.IMAGE.require(name, ProviderError)
    request = _request(name, choose_builder(how["builder"]), how)
    if file is None:
        for sentence in draft.content.requirements.left_out:
            output.warn(f"left out: {sentence}")
        identity = build_from(draft.dockerfile, files, request, output.note)
    else:
        identity = build_in_place(file, files, request, output.note)
    if request.platform is None:
        _prove(request)
    output.show(build_result(draft, request, identity))
    return 0


def _draft(
    manifest: Path | None, target: str | None, component: str | None, base: str | None
) -> ImageDraft:
    from scalable.images.request import draft
    from scalable.providers.registry import provider_traits
    from scalable.session.request import Request

    spec = Request.read(manifest, target).spec
    return draft(spec, provider_traits(spec.provider_name), component=component, base=base)


def _request(name: str, builder: str, how: dict[str, Any]) -> BuildRequest:
    from scalable.images.build import BuildRequest

    return BuildRequest(builder, name, platform=how["platform"], timeout_s=how["timeout"])


def _prove(request: BuildRequest) -> None:
    """Start the image once, and compare its Python and packages with this process's.

    Raises
    ------
    ProviderError
        When a worker could not run in it.
    """
    from scalable.containers import ContainerRequest, container_name, prove
    from scalable.containers.choose import named_runtime

    unit = f"image-{request.tag.rpartition('/')[2]}"
    prove(ContainerRequest(named_runtime(request.builder), request.tag, container_name(unit)))


def _data(draft: ImageDraft) -> dict[str, Any]:
    required = draft.content.requirements
    return {
        "version": VERSION,
        "dockerfile": draft.dockerfile,
        "base": draft.content.base,
        "requirements": required.source,
        "left_out": list(required.left_out),
        "files": [] if draft.content.wheel is None else [draft.content.wheel],
        "key": ".".join(draft.key),
        "image": draft.named,
    }


def build_result(draft: ImageDraft, request: BuildRequest, identity: str) -> Result:
    """Return the image, the command that pushes it, and its place in the manifest.

    Parameters
    ----------
    draft
        The image.
    request
        The build.
    identity
        Id of the image.
    """
    name = request.tag
    push = f"{request.builder} push {name}"
    named = draft.named is not None and draft.named.removeprefix("docker://") == name
    lines = [f"built {name} ({identity})", f"push it:  {push}"]
    if named:
        lines.append(f"the manifest names it already: {'.'.join(draft.key)}")
    else:
        lines.append("name it in the manifest:")
        lines += [f"{'  ' * depth}  {key}:" for depth, key in enumerate(draft.key)]
        lines[-1] += f" {name}"
    data = {
        "version": VERSION,
        "image": name,
        "id": identity,
        "push": push,
        "key": ".".join(draft.key),
        "named": named,
    }
    return Result("".join(f"{line}\n" for line in lines), data)
