"""``scalable validate``."""

from __future__ import annotations

from collections.abc import Sequence
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
    help="Also ask the live system, such as Slurm for its limits, of --target or else of the "
    "target that would run. Nothing is started.",
)
def command(manifest: Path | None, target: str | None, *, live: bool) -> Result:
    """Check a manifest; list every error with its position and a hint."""
    path = settings.manifest_path(manifest)
    report, targets = check(path, target)
    checked = None
    if live and report.ok:
        checked, found = _live(path, target)
        report.extend(found)
    return validation_result(path, report, targets, checked)


def check(path: Path, target: str | None) -> tuple[ValidationReport, tuple[str, ...]]:
    """Check one or all targets. Return the distinct findings and the targets' names."""
    from scalable.manifest import Manifest
    from scalable.providers.registry import option_models
    from scalable.session.request import Request

    report = ValidationReport()
    try:
        manifest = Manifest.load(path, option_models(), target=target)
        targets = manifest.target_names if target is None else (target,)
        # Several targets have the same findings about components.
        found: dict[Diagnostic, None] = {}
        for name in targets:
            of_target = Request(manifest.resolve(name), manifest).validate()
            found |= dict.fromkeys([*of_target.errors, *of_target.warnings])
        report.extend(found)
    except ManifestError as error:
        report.extend(error.diagnostics or (_as_diagnostic(error, path),))
        return report, ()
    return report, targets


def _live(path: Path, target: str | None) -> tuple[str, list[Diagnostic]]:
    """Check a target, by default the one that would run, against the live system."""
    from scalable.session.request import Request

    request = Request.read(path, target)
    found = request.check()
    return request.target, [*found.errors, *found.warnings]


def validation_result(
    path: Path, report: ValidationReport, targets: Sequence[str], checked: str | None = None
) -> Result:
    """Return the result of a check. ``checked`` is the target whose live system was asked."""
    lines = [diagnostic.render() for diagnostic in (*report.errors, *report.warnings)]
    warnings = [counted(len(report.warnings), "warning")] if report.warnings else []
    if report.ok:
        names = f"target{'s' * (len(targets) != 1)} {', '.join(targets)}"
        lines.append(f"{path} is valid for {names}" + (f" ({warnings[0]})" if warnings else ""))
        if checked is not None and len(targets) > 1:
            lines.append(f"Only {checked} was asked: check another target with --check --target")
    else:
        counts = [counted(len(report.errors), "error"), *warnings]
        lines.append(f"{path} cannot be used: {', '.join(counts)}")
    data = {
        "ok": report.ok,
        "manifest": str(path),
        "targets": list(targets),
        **({} if checked is None else {"checked": checked}),
        **report.to_dict(),
    }
    code = 0 if report.ok else ManifestError.exit_code
    return Result("\n".join(lines) + "\n", data, faulty=not report.ok, exit_code=code)


def _as_diagnostic(error: ManifestError, path: Path) -> Diagnostic:
    return Diagnostic(error.code, (), error.message, hint=error.hint, file=str(path))
