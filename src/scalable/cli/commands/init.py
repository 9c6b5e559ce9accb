"""``scalable init``."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import click

from scalable.cli.options import Command
from scalable.cli.output import Result, naming, to_json, write_file
from scalable.errors import ManifestError
from scalable.providers.registry import option_models

MANIFEST, WORKFLOW, SCHEMA = "scalable.yaml", "workflow.py", "scalable.schema.json"


@click.command(cls=Command)
@click.argument(
    "directory", metavar="[DIR]", default=".", type=click.Path(file_okay=False, path_type=Path)
)
@click.option(
    "--name", metavar="NAME", help="Name of the project; by default the name of the directory."
)
@click.option("--force", is_flag=True, help="Replace existing files.")
def command(directory: Path, *, name: str | None, force: bool) -> Result:
    """Start a project: write a manifest, a workflow and a schema."""
    from scalable.manifest import json_schema, starter_manifest, starter_workflow

    files = {
        MANIFEST: starter_manifest(name or directory.resolve().name or "project"),
        WORKFLOW: starter_workflow(),
        SCHEMA: to_json(json_schema(option_models())),
    }
    existing = [file for file in files if os.path.lexists(directory / file)]
    if existing and not force:
        verb = "exists" if len(existing) == 1 else "exist"
        raise ManifestError(
            f"{', '.join(str(directory / file) for file in existing)} already {verb}",
            hint="nothing was written; use --force to replace existing files",
        )
    with naming(directory):
        directory.mkdir(parents=True, exist_ok=True)
    for file, text in files.items():
        write_file(directory / file, text)
    written = [str(directory / file) for file in files]
    # In the current directory both commands find the manifest, and the workflow next to it.
    manifest = "" if directory == Path() else f" {shlex.quote(str(directory / MANIFEST))}"
    following = [f"scalable validate{manifest}", f"scalable run{manifest} --target local"]
    text = "\n".join([f"wrote {', '.join(written)}", "next:", *(f"  {c}" for c in following)])
    return Result(f"{text}\n", {"files": written, "next": following})
