"""The bounds of a manifest, where somebody scales while it runs."""

from __future__ import annotations

from collections.abc import Mapping

from scalable.planning import total_maximum
from scalable.scaling.shared_maximum import Claim, shared_out
from scalable.spec import DeploymentSpec, WorkerRange


def within_bounds(
    spec: DeploymentSpec, wanted: Mapping[str, int], counts: Mapping[str, int]
) -> dict[str, int]:
    """Counts that a scaler asks for, held to the bounds of the request.

    Pools that are beyond their bounds already are not moved further, and not moved back.

    Parameters
    ----------
    spec
        The request.
    wanted
        Tag -> workers that are wanted now, of all pools.
    counts
        Tag -> workers that are asked for.
    """
    held: dict[str, int] = {}
    for tag, count in counts.items():
        own = spec.components[tag].workers or WorkerRange()
        low = min(own.minimum, wanted[tag])
        high = count if own.maximum is None else max(own.maximum, wanted[tag])
        held[tag] = max(low, min(count, high))
    total = total_maximum(spec)
    if total is None:
        return held
    others = sum(count for tag, count in wanted.items() if tag not in held)
    claims = {tag: Claim(min(count, wanted[tag]), count, count) for tag, count in held.items()}
    return shared_out(total - others, claims)
