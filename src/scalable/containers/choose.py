"""The choice of a component's container runtime."""

from __future__ import annotations

import platform
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from scalable.containers.render import Runtime
from scalable.errors import ProviderError

#: Runtimes in the order in which ``auto`` tries them. Apptainer is usual on clusters, and
#: podman, unlike docker, needs no daemon.
RUNTIMES: tuple[Runtime, ...] = ("apptainer", "podman", "docker")

#: Value of a component's ``runtime``: run this machine's Python in the container of any runtime.
HOST = "host"


def choose_runtime(
    asked: str,
    component_runtime: str | None = None,
    which: Callable[[str], str | None] = shutil.which,
) -> Runtime | None:
    """Return the runtime of one component, or None to run without a container.
    The component's setting overrides the target's, except ``none``: a cluster's manifest then runs
    on a laptop without containers. None or ``host`` leaves the choice to the target. Raises
    ProviderError if the runtime is unknown or not installed.
    """
    wanted = asked if component_runtime in (None, HOST) else component_runtime
    if "none" in (asked, wanted):
        return None
    installed = [name for name in RUNTIMES if which(name)]
    if wanted == "auto" and installed:
        return installed[0]
    for name in installed:
        if name == wanted:
            return name
    here = f"installed: {', '.join(installed)}" if installed else "none is installed"
    if wanted == "auto":
        raise ProviderError(
            f"no container runtime is on PATH; supported: {', '.join(RUNTIMES)}",
            hint="install one or load its module, or write none",
        )
    if wanted not in RUNTIMES:
        raise ProviderError(
            f"container runtime {wanted!r} is unknown ({here})",
            hint=f"write one of: {', '.join(RUNTIMES)}, auto, none",
        )
    raise ProviderError(
        f"container runtime {wanted!r} is not on PATH ({here})",
        hint="install it or load its module, or write auto or none",
    )


# Versions -----------------------------------------------------------------------------------------

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


# Contract -----------------------------------------------------------------------------------------

#: Packages without which no worker starts.
NEEDED = ("scalable", "distributed")
#: Advice for an image that breaks the contract.
ADVICE = (
    "an image for workers has a program python3 with scalable and distributed in the releases of "
    "this machine; docs/images.md shows how to make one"
)

#: Messages of runtimes and shells about a missing Python.
_NO_PYTHON = re.compile(
    r"""python3?["'`]?:?\s+(executable\ file\s)?not\ found
    |executable\ file\s["'`]?python3?["'`]?\snot\ found""",
    re.VERBOSE,
)
_MODULE = re.compile(r"No module named '?([\w.]+)")


def image_fault(image: str, said: str) -> str | None:
    """Return a sentence about an image without a suitable Python, or None for another error.
    ``said`` is the output of the runtime, or of the program in the image.
    """
    for name in _MODULE.findall(said):
        package = name.partition(".")[0]
        if package in (*NEEDED, "dask"):
            return f"the Python of image {image!r} does not have the package {package}"
    if _NO_PYTHON.search(said):
        return f"image {image!r} has no program python3"
    return None


def lacking(image: str, packages: Mapping[str, str | None]) -> str | None:
    """Return a sentence about needed packages that are not installed (version None), or None."""
    missing = [name for name in NEEDED if packages.get(name, "") is None]
    if not missing:
        return None
    noun = "package" if len(missing) == 1 else "packages"
    return f"the Python of image {image!r} does not have the {noun} {' and '.join(missing)}"
