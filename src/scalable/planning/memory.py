"""Reservations of memory beside what calls used. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from scalable.planning.notices import WORKER_NEEDS
from scalable.planning.work import Calls
from scalable.spec import DeploymentSpec, MemoryAdvice

#: What is reserved beyond the 95 % quantile of what calls used.
HEADROOM = 1.2
#: A reservation is far from the advice from this ratio on; below the advice it always is.
FAR = 2.0
#: With fewer calls nothing is advised.
LEAST_SAMPLES = 5


def advise_memory(spec: DeploymentSpec, calls: Sequence[Calls]) -> tuple[MemoryAdvice, ...]:
    """Advice for the components whose workers reserve far more, or less, than calls used.

    Parameters
    ----------
    spec
        The request.
    calls
        Their forecasts; those that do not rest on earlier runs say nothing.
    """
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
    """Advice for one reservation, or None where it fits or too little is known.

    Parameters
    ----------
    tag
        The component.
    reserved
        Bytes of one worker.
    used
        95 % quantile of what calls used, in bytes.
    samples
        Calls that it rests on.
    """
    advised = max(WORKER_NEEDS, round(HEADROOM * used))
    if samples < LEAST_SAMPLES or advised <= reserved <= FAR * advised:
        return None
    return MemoryAdvice(tag, reserved, used, advised, samples)
