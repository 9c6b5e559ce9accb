"""Command lines that run a program inside apptainer, docker or podman.
``request``, ``render`` and ``contract`` do no I/O, the others read this machine.
"""

from typing import TYPE_CHECKING

from scalable.exports import exported_lazily

if TYPE_CHECKING:
    from scalable.containers.check import (
        check_image,
        check_mounts,
        probe_versions,
        run_bounded,
    )
    from scalable.containers.choose import RUNTIMES, choose_runtime
    from scalable.containers.component import image_findings, prove, request_for
    from scalable.containers.contract import ADVICE, image_fault
    from scalable.containers.host_python import HostPython, read_host_python
    from scalable.containers.render import render_batch, render_command, render_removal
    from scalable.containers.request import ContainerRequest, Runtime, container_name
    from scalable.containers.versions import Versions, describe_mismatch, read_versions

__all__ = [
    "ADVICE",
    "RUNTIMES",
    "ContainerRequest",
    "HostPython",
    "Runtime",
    "Versions",
    "check_image",
    "check_mounts",
    "choose_runtime",
    "container_name",
    "describe_mismatch",
    "image_fault",
    "image_findings",
    "probe_versions",
    "prove",
    "read_host_python",
    "read_versions",
    "render_batch",
    "render_command",
    "render_removal",
    "request_for",
    "run_bounded",
]

__getattr__, __dir__ = exported_lazily(
    __name__,
    {
        "scalable.containers.check": (
            "check_image",
            "check_mounts",
            "probe_versions",
            "run_bounded",
        ),
        "scalable.containers.choose": (
            "RUNTIMES",
            "choose_runtime",
        ),
        "scalable.containers.component": (
            "image_findings",
            "prove",
            "request_for",
        ),
        "scalable.containers.contract": (
            "ADVICE",
            "image_fault",
        ),
        "scalable.containers.host_python": (
            "HostPython",
            "read_host_python",
        ),
        "scalable.containers.render": (
            "render_batch",
            "render_command",
            "render_removal",
        ),
        "scalable.containers.request": (
            "ContainerRequest",
            "Runtime",
            "container_name",
        ),
        "scalable.containers.versions": (
            "Versions",
            "describe_mismatch",
            "read_versions",
        ),
    },
)
