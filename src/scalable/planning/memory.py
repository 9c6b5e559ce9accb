"""Advice on memory reservations, from the memory that tasks used. No I/O."""

from __future__ import annotations

from collections.abc import Sequence

from scalable.model import DeploymentSpec, MemoryAdvice
from scalable.planning.notices import WORKER_NEEDS
from scalable.planning.work import Calls

#: Advised reservation divided by the 95 % quantile of used memory.
HEADROOM = 1.2
#: A reservation above this multiple of the advised reservation is reported.
FAR = 2.0
#: Minimum number of measured tasks before anything is advised.
LEAST_SAMPLES = 5


def advise_memory(spec: DeploymentSpec, calls: Sequence[Calls]) -> tuple[MemoryAdvice, ...]:
    """Return advice on reservations that measured tasks show to be far too large, or small."""
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
    advised = max(WORKER_NEEDS, round(HEADROOM * used))
    if samples < LEAST_SAMPLES or advised <= reserved <= FAR * advised:
        return None
    return MemoryAdvice(tag, reserved, used, advised, samples)
