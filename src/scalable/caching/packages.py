"""Versions of the packages that a task uses."""

from __future__ import annotations

import importlib.metadata
import platform
import sys
from functools import cache
from hashlib import blake2b
from pathlib import Path

from scalable.protocol.code import read_source


@cache
def package_version(module: str) -> str | None:
    """Return the version of a top-level module's package, or the digest of a module's file.

    It is None for Python's own modules, since each key contains Python's version, and for this
    package, which does not affect results.
    """
    if module in sys.stdlib_module_names or module in ("builtins", "scalable"):
        return None
    loaded = sys.modules.get(module)
    try:
        return f"{module} {importlib.metadata.version(module)}"
    except importlib.metadata.PackageNotFoundError:
        told = getattr(loaded, "__version__", None)
    if isinstance(told, str):
        return f"{module} {told}"
    names = _distributions().get(module)
    if names:
        versions = {name: importlib.metadata.version(name) for name in sorted(set(names))}
        return " ".join(f"{name} {version}" for name, version in versions.items())
    path = getattr(loaded, "__file__", None)
    source = read_source(path) if isinstance(path, str) else None
    if source is None:
        return "unknown"
    return f"{Path(str(path)).name} {blake2b(source, digest_size=16).hexdigest()}"


@cache
def python_version() -> str:
    """Return implementation and version of Python, and the machine type."""
    return f"{platform.python_implementation()} {platform.python_version()} {platform.machine()}"


@cache
def _distributions() -> dict[str, list[str]]:
    # This reads the files of all installed packages, which takes seconds on a slow disk.
    return dict(importlib.metadata.packages_distributions())
