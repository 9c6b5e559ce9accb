"""``scalable validate``."""

from __future__ import annotations

from pathlib import Path

import click

from scalable import settings
from scalable.cli.options import Command, manifest_argument, target_option
from scalable.cli.output import Result
from scalable.errors import ManifestError
from scalable.model import Diagnostic, ValidationReport
from scalable.units import counted


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
def command(manifest: Path | None, target: str | None, *, live: bool) -> Result:
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
