"""The container of a component's workers."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping

from scalable.containers.check import check_image, check_mounts, probe_versions
from scalable.containers.choose import HOST, choose_runtime
from scalable.containers.contract import ADVICE, lacking
from scalable.containers.host_python import read_host_python
from scalable.containers.request import ContainerRequest, container_name
from scalable.containers.versions import describe_mismatch, read_versions
from scalable.errors import ProviderError
from scalable.spec import ComponentSpec, Diagnostic


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
    """Return the container of a component's workers, or None to run without one.
    ``unit`` is unique on the machine. ``mounts`` (container paths, by host path) extend the
    component's. ``exist``: they have to exist here. Raise ProviderError for a missing runtime or
    mount.
    """
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
        # Without it, files that a docker container writes would belong to root.
        user=f"{os.getuid()}:{os.getgid()}" if runtime == "docker" and os.getuid() else None,
    )


def prove(request: ContainerRequest) -> None:
    """Start a container once, so that an error is reported before workers are started.
    Raise ProviderError if the image is missing, its Python does not start, or its package versions
    differ from those of this process.
    """
    check_image(request)
    found = probe_versions(request)
    mismatch = describe_mismatch(read_versions(), found)
    fault = lacking(request.image, found.packages)
    if fault is None and mismatch is not None:
        fault = f"image {request.image!r} does not fit: {mismatch}"
    if fault is not None:
        raise ProviderError(
            fault, hint=f"{ADVICE}; or use this machine's Python with runtime: host"
        )


def image_findings(requests: Mapping[str, ContainerRequest | None]) -> list[Diagnostic]:
    """Return the errors of components' images. Each is started once as a trial."""
    found = []
    for tag, request in requests.items():
        try:
            if request is not None:
                prove(request)
        except ProviderError as error:
            path = ("components", tag, "image")
            found.append(Diagnostic("E_BAD_OPTION", path, error.message, error.hint))
    return found
