"""The requirements of a project: read from its files, or from the packages of this Python."""

from __future__ import annotations

import json
import logging
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

from scalable.errors import ProviderError
from scalable.images.requirements import (
    Installed,
    Requirements,
    frozen,
    installable,
    logical_lines,
)

logger = logging.getLogger("scalable.images")

REQUIREMENTS, PYPROJECT = "requirements.txt", "pyproject.toml"
_INCLUDE = ("-r", "--requirement")
_CONSTRAIN = ("-c", "--constraint")


def project_requirements(directory: Path, pinned: tuple[str, ...]) -> Requirements:
    """Return the requirements of a project.

    They come from ``requirements.txt``, else from ``pyproject.toml`` if it lists dependencies, else
    from the packages of this Python.

    Parameters
    ----------
    directory
        Directory of the manifest.
    pinned
        Names of packages whose release is given by the client's.

    Raises
    ------
    ProviderError
        When a file cannot be read.
    """
    file = directory / REQUIREMENTS
    if file.is_file():
        lines: list[str] = []
        constraints: list[str] = []
        _collect(file, lines, constraints, seen=set())
        return installable(REQUIREMENTS, lines, constraints, pinned)
    listed = _listed(directory / PYPROJECT)
    if listed is not None:
        return installable(PYPROJECT, listed, (), pinned)
    return frozen(_installed(), pinned)


def _collect(file: Path, lines: list[str], constraints: list[str], seen: set[Path]) -> None:
    """Read a requirements file, and the files that it includes."""
    if file.resolve() in seen:
        return
    seen.add(file.resolve())
    for line in logical_lines(_read(file)):
        option, _, rest = line.replace("=", " ", 1).partition(" ")
        # pip takes `-rother.txt` too.
        if line[:2] in (*_INCLUDE, *_CONSTRAIN) and line[2:3] not in ("", " ", "-"):
            option, rest = line[:2], line[2:]
        if option in _INCLUDE:
            _collect(file.parent / rest.strip(), lines, constraints, seen)
        elif option in _CONSTRAIN:
            nested: list[str] = []
            _collect(file.parent / rest.strip(), nested, constraints, seen)
            constraints += nested
        else:
            lines.append(line)


def _listed(file: Path) -> list[str] | None:
    """Return the dependencies in ``pyproject.toml``; None if it does not list them."""
    if not file.is_file():
        return None
    try:
        project: Any = tomllib.loads(_read(file)).get("project", {})
    except tomllib.TOMLDecodeError as error:
        raise ProviderError(f"{file} is not TOML: {error}") from error
    listed = project.get("dependencies") if isinstance(project, dict) else None
    if listed is None:
        logger.debug("%s lists no dependencies", file)
        return None
    return [str(line) for line in listed]


def _installed() -> list[Installed]:
    """Return the packages of this Python; of one that is found twice, the first."""
    found: dict[str, Installed] = {}
    for distribution in metadata.distributions():
        name = distribution.metadata["Name"]
        if name:
            found.setdefault(name, Installed(name, distribution.version, origin(distribution)))
    return list(found.values())


def origin(distribution: metadata.Distribution) -> dict[str, Any] | None:
    """Return the content of a package's ``direct_url.json``; None if an index has the package."""
    text = distribution.read_text("direct_url.json")
    try:
        content = json.loads(text) if text else None
    except ValueError:
        content = None
    return content if isinstance(content, dict) else None


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ProviderError(f"{file} cannot be read: {error}") from error
