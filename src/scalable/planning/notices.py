"""Warnings about valid values that are too small or have no effect, and errors of mounts."""

from __future__ import annotations

from scalable.model import DeploymentSpec, Diagnostic
from scalable.units import format_bytes

#: Bytes that a worker needs without any tasks, with a margin (measured: 60 to 65 MiB).
WORKER_NEEDS = 90 * 10**6


def notices(spec: DeploymentSpec) -> list[Diagnostic]:
    """Return warnings about values that are too small or have no effect, and errors of mounts."""
    return [*_little_memory(spec), *_mounts(spec)]


def _little_memory(spec: DeploymentSpec) -> list[Diagnostic]:
    return [
        Diagnostic(
            "W_LITTLE_MEMORY",
            ("components", tag, "memory"),
            f"memory {component.memory} is {format_bytes(component.memory_bytes)}; "
            f"a worker alone needs {format_bytes(WORKER_NEEDS)}",
            hint="write for example 1G",
            severity="warning",
        )
        for tag, component in spec.components.items()
        if component.memory_bytes is not None and component.memory_bytes < WORKER_NEEDS
    ]


def _mounts(spec: DeploymentSpec) -> list[Diagnostic]:
    found = []
    for tag, component in spec.components.items():
        path = ("components", tag, "mounts")
        if component.mounts and component.image is None and spec.options.get("image") is None:
            text = "the mounts have no effect: the component has no image"
            hint = "add an image, or remove the mounts"
            found.append(Diagnostic("W_NOT_APPLIED", path, text, hint, severity="warning"))
        # The provider checks sources such as pvc://claim.
        hosts = [source for source in component.mounts if "://" not in source]
        faults = [f"host path {p!r}" for p in hosts if not p.startswith("/")]
        inside = component.mounts.values()
        faults += [f"container path {p!r}" for p in inside if not p.startswith("/")]
        found += [
            Diagnostic("E_BAD_OPTION", path, f"{fault} is not absolute", hint="begin it with /")
            for fault in faults
        ]
    return found
