"""Containers of components: choice of the runtime, trial start, and versions."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TypeAlias

from scalable.containers.render import (
    IMAGE_PYTHON,
    ContainerRequest,
    Runtime,
    container_name,
    read_host_python,
    render_command,
)
from scalable.containers.setup import setup_entry
from scalable.errors import ProviderError
from scalable.model import ComponentSpec, Diagnostic

# Choice of the runtime ----------------------------------------------------------------------------


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
    The component's setting overrides the target's, but ``none`` in either disables the container. A
    setting of None or ``host`` leaves the choice to the target. Raises ProviderError if the runtime
    is unknown or not installed.
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
class PackageVersions:
    """Versions of a Python interpreter and its packages."""

    #: Version of Python, such as ``3.12.4``.
    python: str
    #: Versions by package. None if it is not installed, left out if unknown.
    packages: Mapping[str, str | None]


def read_versions() -> PackageVersions:
    """Return the versions of this Python and its packages, without importing them."""
    return PackageVersions(platform.python_version(), {name: _installed(name) for name in PACKAGES})


def describe_mismatch(host: PackageVersions, worker: PackageVersions) -> str | None:
    """Return a sentence if major or minor versions differ, otherwise None."""
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
    "an image for workers needs a program python3, and scalable and distributed in the releases "
    "of this machine; docs/images.md shows how to make one"
)

#: Messages of runtimes and shells about a missing Python.
_NO_PYTHON = re.compile(
    r"""python3?["'`]?:?\s+(executable\ file\s)?not\ found
    |executable\ file\s["'`]?python3?["'`]?\snot\ found""",
    re.VERBOSE,
)
_MODULE = re.compile(r"No module named '?([\w.]+)")


def image_fault(image: str, said: str) -> str | None:
    """Return a sentence if the output reports an unsuitable Python, or None for other errors."""
    for name in _MODULE.findall(said):
        package = name.partition(".")[0]
        if package in (*NEEDED, "dask"):
            return f"the Python of image {image!r} does not have the package {package}"
    if _NO_PYTHON.search(said):
        return f"image {image!r} has no program python3"
    return None


def lacking(image: str, packages: Mapping[str, str | None]) -> str | None:
    """Return a sentence if required packages are not installed, otherwise None."""
    missing = [name for name in NEEDED if packages.get(name, "") is None]
    if not missing:
        return None
    noun = "package" if len(missing) == 1 else "packages"
    return f"the Python of image {image!r} does not have the {noun} {' and '.join(missing)}"


def request_for(
    component: ComponentSpec,
    asked: str,
    *,
    unit: str,
    environment: Mapping[str, str],
    mounts: Mapping[str, str],
    which: Callable[[str], str | None] = shutil.which,
    exist: bool = True,
) -> ContainerRequest | None:
    """Return a component's container, if any. Raises ProviderError for a bad runtime or mount."""
    if component.image is None:
        return None
    runtime = choose_runtime(asked, component.runtime, which)
    if runtime is None:
        return None
    faults = check_mounts(component.mounts, exist=exist)
    if faults:
        raise ProviderError(f"component {component.name!r}: {'; '.join(faults)}")
    return ContainerRequest(
        runtime,
        component.image,
        container_name(unit),
        mounts={**mounts, **component.mounts},
        env=environment,
        gpus=component.gpus,
        host_python=read_host_python() if component.runtime == HOST else None,
        entry=setup_entry(component.setup, "sh"),
        interpreter=component.python or IMAGE_PYTHON,
        # Without it, files that a docker container writes would belong to root.
        user=f"{os.getuid()}:{os.getgid()}" if runtime == "docker" and os.getuid() else None,
    )


def prove(request: ContainerRequest) -> None:
    """Start a container once, to report errors before workers are started.
    Raise ProviderError if the image is missing, its Python does not start, or its package versions
    differ from those of this process.
    """
    check_image(request)
    found = probe_versions(request)
    mismatch = describe_mismatch(read_versions(), found)
    fault = lacking(request.image, found.packages)
    if fault is None and mismatch is not None:
        fault = f"image {request.image!r} is not suitable: {mismatch}"
    if fault is not None:
        raise ProviderError(
            fault, hint=f"{ADVICE}; or use this machine's Python with runtime: host"
        )


def image_findings(requests: Mapping[str, ContainerRequest | None]) -> list[Diagnostic]:
    """Start each component's image once as a trial, and return its errors."""
    found = []
    for tag, request in requests.items():
        try:
            if request is not None:
                prove(request)
        except ProviderError as error:
            path = ("components", tag, "image")
            found.append(Diagnostic("E_BAD_OPTION", path, error.message, error.hint))
    return found


# Check --------------------------------------------------------------------------------------------

INSPECT_S = 30.0
PULL_S = 1800.0
PROBE_S = 120.0
SAID_LINES = 5

Run: TypeAlias = Callable[[Sequence[str], float], "subprocess.CompletedProcess[str]"]

# The image may lack this package, so only the standard library is used.
_REPORT = """
import json, platform, sys
from importlib.metadata import PackageNotFoundError, version
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = version(name)
    except PackageNotFoundError:
        found[name] = None
print(json.dumps({"python": platform.python_version(), "packages": found}))
"""


def run_bounded(command: Sequence[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
    """Run a command. Raises ProviderError if it cannot start or exceeds ``timeout_s`` seconds."""
    try:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ProviderError(
            f"{_verb(command)} did not finish within {timeout_s:g} s", transient=True
        ) from error
    except OSError as error:
        raise ProviderError(f"{_verb(command)} cannot be started: {error}") from error


def check_image(request: ContainerRequest, run: Run = run_bounded) -> None:
    """Fetch an image to this machine for all workers, or raise ProviderError."""
    runtime, reference = request.runtime, request.reference
    check_image_file(request)
    if runtime == "apptainer":
        if request.image_file is None:
            # Convert the image into the cache that all workers use.
            _require(request, run(["apptainer", "exec", "--cleanenv", reference, "true"], PULL_S))
    elif (
        request.image_file is None
        and run([runtime, "image", "inspect", reference], INSPECT_S).returncode
    ):
        _require(request, run([runtime, "pull", reference], PULL_S))


def check_image_file(request: ContainerRequest) -> None:
    """Raise ProviderError for an image file that is missing, or that the runtime cannot run."""
    if request.image_file is None:
        return
    if request.runtime != "apptainer":
        raise ProviderError(
            f"image {request.image_file} is a file, which {request.runtime} cannot run; only "
            "apptainer can",
            hint="choose the runtime apptainer, or write a reference such as ghcr.io/site/model:1",
        )
    if not Path(request.image_file).exists():
        raise ProviderError(
            f"image {request.image_file} does not exist",
            hint="build it with apptainer build, or write a reference such as "
            "docker://ghcr.io/site/model:1",
        )


def check_mounts(mounts: Mapping[str, str], *, exist: bool = True) -> list[str]:
    """Return a sentence for each error in the mounts. ``exist`` requires host paths to exist."""
    faults = []
    for outside, inside in mounts.items():
        if not outside.startswith("/"):
            faults.append(f"host path {outside!r} is not absolute")
        elif exist and not Path(outside).exists():
            faults.append(f"host path {outside} does not exist")
        if not inside.startswith("/"):
            faults.append(f"container path {inside!r} is not absolute")
    counts = Counter(mounts.values())
    return faults + [f"container path {p} is given twice" for p, n in counts.items() if n > 1]


def probe_versions(request: ContainerRequest, run: Run = run_bounded) -> PackageVersions:
    """Start the container once and return its versions, or raise ProviderError."""
    answer = run(render_command(request, [request.python, "-c", _REPORT, *PACKAGES]), PROBE_S)
    try:
        said = json.loads(answer.stdout.splitlines()[-1])
        return PackageVersions(said["python"], said["packages"])
    except (ValueError, LookupError, TypeError):
        said = _said(answer)
        fault = image_fault(request.image, said) or f"Python does not start in {request.image!r}"
        raise ProviderError(
            f"{fault}: {said}", hint=f"{ADVICE}; or use this machine's Python with runtime: host"
        ) from None


def _require(request: ContainerRequest, answer: subprocess.CompletedProcess[str]) -> None:
    if answer.returncode:
        raise ProviderError(
            f"image {request.image!r} is not on this machine and cannot be fetched: "
            f"{_said(answer)}",
            hint="check its name, or that you are logged in to its registry",
        )


def _said(answer: subprocess.CompletedProcess[str]) -> str:
    """Return the last lines of a command's output, or its exit code."""
    lines = (answer.stderr.strip() or answer.stdout.strip()).splitlines()[-SAID_LINES:]
    return "; ".join(line.strip() for line in lines) or f"exit code {answer.returncode}"


def _verb(command: Sequence[str]) -> str:
    return " ".join(command[:2])
