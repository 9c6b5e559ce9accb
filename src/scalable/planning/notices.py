"""What a request says without effect, or cannot work well with. Pure."""

from __future__ import annotations

from scalable.spec import DeploymentSpec, Diagnostic
from scalable.units import format_bytes, parse_bytes

#: Bytes that a worker has in use before it runs anything (measured: 60 to 65 MiB).
WORKER_NEEDS = 90 * 10**6


def notices(spec: DeploymentSpec) -> list[Diagnostic]:
    """Warnings for what is accepted but not acted upon in this version, or cannot work well."""
    path = ("targets", spec.target_name)
    found: list[tuple[str, ...]] = [] if spec.adaptive is None else [(*path, "adaptive")]
    small = [
        Diagnostic(
            "W_LITTLE_MEMORY",
            ("components", tag, "memory"),
            f"memory {component.memory} is {format_bytes(parse_bytes(component.memory))}; "
            f"a worker alone needs {format_bytes(WORKER_NEEDS)}",
            hint="write for example 1G",
            severity="warning",
        )
        for tag, component in spec.components.items()
        if component.memory is not None and parse_bytes(component.memory) < WORKER_NEEDS
    ]
    return small + [
        Diagnostic(
            "W_NOT_APPLIED",
            place,
            f"{place[-1]} is checked but not acted upon in this version",
            severity="warning",
        )
        for place in found
    ]
