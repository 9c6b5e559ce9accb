"""Whether two Pythons can exchange work."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

#: Packages that both ends of a connection must have alike.
PACKAGES = ("scalable", "distributed", "dask", "cloudpickle", "msgpack")


@dataclass(frozen=True)
class Versions:
    """What a Python has installed.

    Attributes
    ----------
    python
        Its own version, such as ``3.12.4``.
    packages
        Package -> version, None where it is not installed. What is left out is not known.
    """

    python: str
    packages: Mapping[str, str | None]


def read_versions() -> Versions:
    """Versions of this Python; no package is imported for it."""
    return Versions(platform.python_version(), {name: _installed(name) for name in PACKAGES})


def describe_mismatch(host: Versions, worker: Versions) -> str | None:
    """Say where a worker's versions differ from ours by more than a patch.

    Parameters
    ----------
    host
        Versions of the process that sends the calls.
    worker
        Versions of the worker. A package that one side does not know of is not compared.

    Returns
    -------
    str or None
        A sentence that names each difference, or None where there is none.
    """
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
        f"the worker's versions do not fit: {', '.join(different)}; what one side pickles, the "
        "other may not be able to read"
    )


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _series(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(text.split(".")[:2])
