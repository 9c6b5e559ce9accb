"""The manifest's bounds on worker counts, applied to counts requested while a cluster runs."""

from __future__ import annotations

from collections.abc import Mapping

from scalable.model import DeploymentSpec, WorkerRange
from scalable.planning import total_maximum
from scalable.scaling.policy import Claim, shared_out


def within_bounds(
    spec: DeploymentSpec, wanted: Mapping[str, int], counts: Mapping[str, int]
) -> dict[str, int]:
    """Return the requested worker counts, limited to the manifest's bounds.
    ``wanted`` has the current desired counts of all pools. A pool that is outside its bounds may
    keep its count, but move no further away.
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
