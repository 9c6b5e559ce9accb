"""Command lines that run a program inside apptainer, docker or podman."""

from typing import TYPE_CHECKING

from scalable.exports import exported_lazily

if TYPE_CHECKING:
    from scalable.containers.component import (
        ADVICE,
        RUNTIMES,
        PackageVersions,
        check_image,
        check_image_file,
        check_mounts,
        choose_runtime,
        describe_mismatch,
        image_fault,
        image_findings,
        probe_versions,
        prove,
        read_versions,
        request_for,
        run_bounded,
    )
    from scalable.containers.render import (
        ContainerRequest,
        HostPython,
        Runtime,
        container_name,
        read_host_python,
        render_batch,
        render_command,
        render_removal,
    )
    from scalable.containers.setup import node_quoted, node_value, setup_entry

__all__ = [
    "ADVICE",
    "RUNTIMES",
    "ContainerRequest",
    "HostPython",
    "PackageVersions",
    "Runtime",
    "check_image",
    "check_image_file",
    "check_mounts",
    "choose_runtime",
    "container_name",
    "describe_mismatch",
    "image_fault",
    "image_findings",
    "node_quoted",
    "node_value",
    "probe_versions",
    "prove",
    "read_host_python",
    "read_versions",
    "render_batch",
    "render_command",
    "render_removal",
    "request_for",
    "run_bounded",
    "setup_entry",
]

__getattr__, __dir__ = exported_lazily(
    __name__,
    {
        "scalable.containers.component": (
            "ADVICE",
            "RUNTIMES",
            "PackageVersions",
            "check_image",
            "check_image_file",
            "check_mounts",
            "choose_runtime",
            "describe_mismatch",
            "image_fault",
            "image_findings",
            "probe_versions",
            "prove",
            "read_versions",
            "request_for",
            "run_bounded",
        ),
        "scalable.containers.render": (
            "ContainerRequest",
            "HostPython",
            "Runtime",
            "container_name",
            "read_host_python",
            "render_batch",
            "render_command",
            "render_removal",
        ),
        "scalable.containers.setup": ("node_quoted", "node_value", "setup_entry"),
    },
)
