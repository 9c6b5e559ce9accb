"""``scalable doctor``."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import tempfile
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import NamedTuple

import click

from scalable import __version__, settings
from scalable.cli.options import Command
from scalable.cli.output import Result
from scalable.errors import ScalableError
from scalable.harmless import one_line
from scalable.providers.registry import provider_traits

PACKAGE = "scalable"


class CheckRow(NamedTuple):
    """Result of one check. ``verdict`` is ok, warn or fail, and ``mend`` describes a fix."""

    what: str
    verdict: str
    fact: str
    mend: str = ""


@click.command(cls=Command)
def command() -> Result:
    """Check this machine: each row is ok, or shows a fix.
    If there is a manifest, it also checks the requirements of the manifest's providers. The exit
    code is 1 if a row fails.
    """
    rows = list(examine())
    width = max(len(row.what) for row in rows)
    lines = []
    for row in rows:
        lines.append(f"{row.verdict:<4}  {row.what:<{width}}  {one_line(row.fact)}")
        if row.mend:
            lines.append(f"      {'':<{width}}  -> {one_line(row.mend)}")
    failed = any(row.verdict == "fail" for row in rows)
    data = {"ok": not failed, "rows": [row._asdict() for row in rows]}
    return Result("\n".join(lines) + "\n", data, faulty=failed, exit_code=int(failed))


def examine() -> Iterator[CheckRow]:
    """Yield the rows about this machine. Nothing is started or changed."""
    from scalable.manifest import read_targets

    manifest, traits = settings.manifest_path(), {}
    try:
        targets = read_targets(manifest) if manifest.exists() else {}
        traits = {name: provider_traits(name) for name in sorted(set(targets.values())) if name}
    except ScalableError as error:
        yield CheckRow("manifest", "fail", error.message, error.hint or "")
    yield from package_rows({extra for each in traits.values() for extra in each.extras})
    try:
        yield directory_row("state directory", settings.state_dir(), private=True)
    except ScalableError as error:
        yield CheckRow("state directory", "fail", error.message, error.hint or "")
    yield directory_row("runs directory", settings.runs_dir().absolute(), private=False)
    for name, each in traits.items():
        for program in each.programs:
            found = shutil.which(program)
            fact = found or f"it is not on the PATH; targets of {name} need it"
            mend = "run on a machine that has it, or add its directory to PATH"
            yield _row(f"{name}: {program}", "" if found else "warn", fact, mend)
    yield port_row()


def _row(what: str, fault: str, fact: str, mend: str) -> CheckRow:
    """Return a row with its fix, or that all is well if ``fault`` is empty."""
    return CheckRow(what, fault, fact, mend) if fault else CheckRow(what, "ok", fact)


def package_rows(needed: set[str]) -> Iterator[CheckRow]:
    """Yield rows for versions and extras, including the extras that the manifest needs."""
    from packaging.requirements import Requirement

    yield CheckRow("python", "ok", f"version {platform.python_version()}")
    if _installed(PACKAGE) is None:
        fact = "it is not installed, so its requirements are not known"
        yield CheckRow(PACKAGE, "warn", fact, "python -m pip install ., in a clone")
        return
    yield CheckRow(PACKAGE, "ok", f"version {__version__}")
    absent: dict[str, dict[str, str]] = {}  # requirement by name
    for requirement in map(Requirement, requires(PACKAGE) or ()):
        found = _installed(requirement.name)
        for extra in str(requirement.marker or "").split('extra == "')[1:]:
            missing = absent.setdefault(extra.partition('"')[0], {})
            if found is None:
                missing[requirement.name] = f"{requirement.name}{requirement.specifier}"
        if requirement.name in ("dask", "distributed") and requirement.marker is None:
            shown = "not installed" if found is None else f"version {found}"
            fact = f"{shown} (supported: {requirement.specifier})"
            supported = found and requirement.specifier.contains(found, prereleases=True)
            mend = f"python -m pip install '{requirement}'"
            yield _row(requirement.name, "" if supported else "fail", fact, mend)
    absent.pop("all", None)
    for name, missing in sorted(absent.items()):
        fact = f"not installed: {', '.join(sorted(missing))}" if missing else "installed"
        mend = f"python -m pip install {' '.join(map(repr, missing.values()))}"
        yield _row(f"extra {name}", "warn" if missing and name in needed else "", fact, mend)


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def directory_row(what: str, path: Path, *, private: bool) -> CheckRow:
    """Return the row about a directory that must be writable, and private if it has secrets."""
    there = next((each for each in (path, *path.parents) if each.exists()), Path("/"))
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        return CheckRow(what, "fail", f"{there} cannot be written to: {error.strerror}")
    if there != path:
        return CheckRow(what, "ok", f"{path} does not exist yet; it is made when it is needed")
    mode, owner, user = path.stat().st_mode & 0o7777, path.stat().st_uid, os.geteuid()
    if owner != user:
        fact = f"{path} belongs to user {owner}, not to user {user}"
        return CheckRow(what, "fail", fact, f"chown {user} {path}")
    if private and mode & 0o077:
        return CheckRow(what, "fail", f"{path} has mode {mode:04o}, not 0700", f"chmod 700 {path}")
    return CheckRow(what, "ok", f"{path} (mode {mode:04o})")


def port_row(host: str = "127.0.0.1") -> CheckRow:
    """Return the row about free ports, after opening and closing one."""
    try:
        with socket.socket() as one:
            one.bind((host, 0))
            port = one.getsockname()[1]
    except OSError as error:
        fact = f"no port of {host} can be opened: {error.strerror}"
        return CheckRow("free ports", "fail", fact, "stop programs that hold ports: ss -ltnp")
    return CheckRow("free ports", "ok", f"a port of {host} can be opened, for example {port}")
