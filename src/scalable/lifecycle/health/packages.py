"""Checks of versions and extras."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, requires, version

from packaging.requirements import Requirement
from packaging.version import Version

from scalable.lifecycle.health.rows import Row

PACKAGE = "scalable"
LEAST_PYTHON = (3, 11)
#: Packages whose versions have rows of their own.
NAMED = ("dask", "distributed")


def version_rows() -> Iterator[Row]:
    """Yield the versions of Python, of this package, and of the packages it depends on."""
    yield python_row(sys.version_info[:3])
    try:
        yield Row(PACKAGE, "ok", f"version {version(PACKAGE)}")
        wanted = [Requirement(text) for text in requires(PACKAGE) or ()]
    except PackageNotFoundError:
        mend = f"python -m pip install {PACKAGE}"
        yield Row(PACKAGE, "warn", "it is not installed, so its requirements are not known", mend)
        return
    for requirement in wanted:
        if requirement.name in NAMED and requirement.marker is None:
            yield requirement_row(requirement)


def python_row(found: tuple[int, ...]) -> Row:
    """Return the row about a version of Python."""
    shown, least = ".".join(map(str, found)), ".".join(map(str, LEAST_PYTHON))
    if found[:2] >= LEAST_PYTHON:
        return Row("python", "ok", f"version {shown}")
    return Row("python", "fail", f"version {shown} is older than {least}", f"use Python {least}")


def requirement_row(requirement: Requirement) -> Row:
    """Return the row about an installed package and the supported versions."""
    found = installed(requirement.name)
    mend = f"python -m pip install '{requirement.name}{requirement.specifier}'"
    if found is None:
        return Row(requirement.name, "fail", "it is not installed", mend)
    if not requirement.specifier.contains(Version(found), prereleases=True):
        fact = f"version {found} is not in the supported range {requirement.specifier}"
        return Row(requirement.name, "fail", fact, mend)
    return Row(requirement.name, "ok", f"version {found} (supported: {requirement.specifier})")


def extra_rows(needed: Iterable[str] = ()) -> Iterator[Row]:
    """Yield a row for each extra of this package.

    Parameters
    ----------
    needed
        Extras without which a target does not work.
    """
    try:
        texts = requires(PACKAGE) or []
    except PackageNotFoundError:
        return
    extras: dict[str, list[str]] = {}
    for requirement in map(Requirement, texts):
        for name in _extras_of(requirement):
            extras.setdefault(name, []).append(requirement.name)
    extras.pop("all", None)
    for name in sorted(extras):
        missing = sorted({each for each in extras[name] if installed(each) is None})
        yield extra_row(name, missing, needed=name in set(needed))


def extra_row(name: str, missing: list[str], *, needed: bool) -> Row:
    """Return the row about an extra, of which some packages may be missing."""
    if not missing:
        return Row(f"extra {name}", "ok", "installed")
    fact = f"not installed: {', '.join(missing)}"
    mend = f"python -m pip install '{PACKAGE}[{name}]'"
    if needed:
        return Row(f"extra {name}", "fail", f"{fact}; the target needs it", mend)
    return Row(f"extra {name}", "ok", f"{fact} (optional)", mend)


def _extras_of(requirement: Requirement) -> list[str]:
    marker = str(requirement.marker or "")
    parts = marker.replace('"', "'").split("extra == '")[1:]
    return [part.split("'")[0] for part in parts]


def installed(name: str) -> str | None:
    """Return the version of an installed package, or None."""
    if name == PACKAGE:
        return "0"
    try:
        return version(name)
    except PackageNotFoundError:
        return None
