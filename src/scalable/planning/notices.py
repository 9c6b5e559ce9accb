"""Warnings about values of the manifest that are valid but too small in practice. No I/O."""

from __future__ import annotations

from scalable.spec import DeploymentSpec, Diagnostic
from scalable.units import format_bytes

#: Bytes that a worker needs without any calls, with a margin (measured: 60 to 65 MiB).
WORKER_NEEDS = 90 * 10**6


def notices(spec: DeploymentSpec) -> list[Diagnostic]:
    """Return warnings about memory reservations that are too small for a worker."""
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
