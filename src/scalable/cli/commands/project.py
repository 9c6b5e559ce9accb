"""Commands for a project's manifest: ``init``, ``validate`` and ``schema``."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import click

from scalable import settings
from scalable.cli.options import Command, manifest_argument, target_option
from scalable.cli.output import Result, naming, to_json, write_file
from scalable.errors import ManifestError
from scalable.model import Diagnostic, ValidationReport
from scalable.units import counted

# init ---------------------------------------------------------------------------------------------

MANIFEST, WORKFLOW, SCHEMA = "scalable.yaml", "workflow.py", "scalable.schema.json"


@click.command(cls=Command)
@click.argument(
    "directory", metavar="[DIR]", default=".", type=click.Path(file_okay=False, path_type=Path)
)
@click.option(
    "--name", metavar="NAME", help="Name of the project; by default the name of the directory."
)
@click.option("--force", is_flag=True, help="Replace existing files.")
def init_command(directory: Path, *, name: str | None, force: bool) -> Result:
    """Start a project: write a manifest, a workflow and a schema."""
    from scalable.manifest import json_schema, starter_manifest, starter_workflow
    from scalable.providers.registry import option_models

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


# validate -----------------------------------------------------------------------------------------


@click.command(cls=Command)
@manifest_argument
@target_option("Check only this target; by default all targets.")
@click.option(
    "--check",
    "live",
    is_flag=True,
    help="Also check --target, or else the default target, against the live system, such as "
    "Slurm's limits. Nothing is started.",
)
def validate_command(manifest: Path | None, target: str | None, *, live: bool) -> Result:
    """Check a manifest; list every error with its position and a hint."""
    from scalable.manifest import Manifest
    from scalable.providers.registry import option_models
    from scalable.session.request import Request

    path, report = settings.manifest_path(manifest), ValidationReport()
    targets: tuple[str, ...] = ()
    try:
        loaded = Manifest.load(path, option_models(), target=target)
        names = loaded.target_names if target is None else (target,)
        # Several targets have the same findings about components.
        found: dict[Diagnostic, None] = {}
        for name in names:
            of_target = Request(loaded.resolve(name), loaded).validate()
            found |= dict.fromkeys([*of_target.errors, *of_target.warnings])
        report.extend(found)
        targets = names
    except ManifestError as error:
        whole = Diagnostic(error.code, (), error.message, hint=error.hint, file=str(path))
        report.extend(error.diagnostics or (whole,))
    asked: dict[str, str] = {}
    if live and report.ok:
        request = Request.read(path, target)
        answer = request.check()
        report.extend([*answer.errors, *answer.warnings])
        asked = {"checked": request.target}
    lines = [diagnostic.render() for diagnostic in (*report.errors, *report.warnings)]
    warnings = [counted(len(report.warnings), "warning")] if report.warnings else []
    if report.ok:
        words = f"target{'s' * (len(targets) != 1)} {', '.join(targets)}"
        lines.append(f"{path} is valid for {words}" + (f" ({warnings[0]})" if warnings else ""))
        if asked and len(targets) > 1:
            only = f"Only {asked['checked']} was checked live"
            lines.append(f"{only}: to check another one, use --check --target")
    else:
        counts = [counted(len(report.errors), "error"), *warnings]
        lines.append(f"{path} cannot be used: {', '.join(counts)}")
    data = {"ok": report.ok, "manifest": str(path), "targets": list(targets), **asked}
    code = 0 if report.ok else ManifestError.exit_code
    return Result(
        "\n".join(lines) + "\n", {**data, **report.to_dict()}, faulty=not report.ok, exit_code=code
    )


# schema -------------------------------------------------------------------------------------------


@click.command(cls=Command)
def schema_command() -> Result:
    """Print the JSON Schema of manifests.
    It covers the options of all installed providers.
    """
    from scalable.manifest import json_schema
    from scalable.providers.registry import option_models

    schema = json_schema(option_models())
    return Result(to_json(schema), schema, versioned=False)
