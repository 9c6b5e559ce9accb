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
    """Return the container of a component's workers; None to run without a container.

    Parameters
    ----------
    component
        Component with its image, runtime and mounts.
    asked
        Setting of the target: ``none``, ``auto`` or the name of a runtime.
    unit
        Unique name of the worker, or group of workers, that runs in the container.
    environment
        Variables of the worker.
    mounts
        Host path -> container path, in addition to the component's mounts.
    which
        Function that finds a program on PATH.
    exist
        Whether the mounts have to exist on this machine.

    Raises
    ------
    ProviderError
        When the runtime is not installed, or a mount does not exist.
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
    """Start a container once as a trial, so that a fault shows before workers are started.

    Raises
    ------
    ProviderError
        When the image is missing, its Python does not start, or its package versions differ from
        those of this process.
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
    """Return the faults of components' images, each started once as a trial.

    Parameters
    ----------
    requests
        Component -> its container, or None without one.
    """
    found = []
    for tag, request in requests.items():
        try:
            if request is not None:
                prove(request)
        except ProviderError as error:
            path = ("components", tag, "image")
            found.append(Diagnostic("E_BAD_OPTION", path, error.message, error.hint))
    return found
