"""Comparison of package versions between this process and a worker."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

#: Packages whose versions must agree between this process and a worker.
PACKAGES = ("scalable", "distributed", "dask", "cloudpickle", "msgpack")


@dataclass(frozen=True)
class Versions:
    """The versions of a Python and its packages."""

    #: Version of Python, such as ``3.12.4``.
    python: str
    #: Versions by package. None if it is not installed, left out if unknown.
    packages: Mapping[str, str | None]


def read_versions() -> Versions:
    """Return the versions of this Python, without importing a package."""
    return Versions(platform.python_version(), {name: _installed(name) for name in PACKAGES})


def describe_mismatch(host: Versions, worker: Versions) -> str | None:
    """Return a sentence about differing versions, except patches and unknown ones, or None."""
    pairs: list[tuple[str, str | None, str | None]] = [("Python", host.python, worker.python)]
    pairs += [
        (name, host.packages[name], worker.packages[name])
        for name in PACKAGES
        if name in host.packages and name in worker.packages
    ]
    different = [
        f"{name} {theirs or 'is missing'}" + (f" (here {ours})" if ours else " (not here)")
        for name, ours, theirs in pairs
        if _series(ours) != _series(theirs)
    ]
    if not different:
        return None
    return (
        f"the worker's versions differ: {', '.join(different)}; one side may not be able to "
        "unpickle the data of the other"
    )


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _series(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(text.split(".")[:2])
