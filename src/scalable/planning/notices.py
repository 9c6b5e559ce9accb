"""Warnings about values that are too small or have no effect, and errors of mounts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from scalable.model import Diagnostic
from scalable.units import format_bytes

if TYPE_CHECKING:
    from scalable.model import DeploymentSpec, MemoryAdvice
    from scalable.planning.work import ExpectedTasks

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
            f"memory {component.memory} is too small: a worker process needs "
            f"{format_bytes(WORKER_NEEDS)} before it runs any task",
            hint="write, for example, 1G",
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
            Diagnostic("E_BAD_OPTION", path, f"{fault} is not absolute", hint="start it with /")
            for fault in faults
        ]
    return found


# Advice on memory reservations, from the memory that tasks used. No I/O ---------------------------


#: Advised reservation divided by the 95 % quantile of used memory.
HEADROOM = 1.2
#: A reservation above this multiple of the advised reservation is reported.
FAR = 2.0
#: Minimum number of measured tasks before anything is advised.
LEAST_SAMPLES = 5


def advise_memory(spec: DeploymentSpec, calls: Sequence[ExpectedTasks]) -> tuple[MemoryAdvice, ...]:
    """Return advice on reservations that are far too large or small for measured tasks."""
    found = []
    for tag in spec.components:
        measured = [
            (c.forecast.memory, c.forecast.samples)
            for c in calls
            if c.tag == tag and c.forecast.source == "history" and c.forecast.memory is not None
        ]
        reserved = spec.resources(tag).memory_bytes
        if reserved is None or not measured:
            continue
        used, samples = max(measured)
        advice = judge_memory(tag, reserved, used, samples)
        if advice is not None:
            found.append(advice)
    return tuple(found)


def judge_memory(tag: str, reserved: int, used: int, samples: int) -> MemoryAdvice | None:
    """Return advice if the 95 % quantile ``used`` of enough tasks does not fit a reservation."""
    from scalable.model import MemoryAdvice

    advised = max(WORKER_NEEDS, round(HEADROOM * used))
    if samples < LEAST_SAMPLES or advised <= reserved <= FAR * advised:
        return None
    return MemoryAdvice(tag, reserved, used, advised, samples)


def memory_in_words(advice: MemoryAdvice) -> str:
    """Return advice on memory as a sentence."""
    reserved, used = format_bytes(advice.reserved), format_bytes(advice.used)
    what = f"components.{advice.tag}.memory reserves {reserved}"
    if advice.advised < advice.reserved:
        share = f"95 % of {advice.samples} tasks used at most {used}"
        return f"{what}; {share}: {advice.written} is enough."
    return f"{what}; 5 % of {advice.samples} tasks used more than {used}: reserve {advice.written}."
