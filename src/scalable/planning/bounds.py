"""Bounds within which a plan with an objective chooses its worker counts. No I/O."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from scalable.errors import PlanError
from scalable.planning.counts import ranges_of, total_limit
from scalable.planning.frontier import Bounds
from scalable.spec import DeploymentSpec

#: Number of workers that stands for "no maximum".
UNBOUNDED = 10**9


def most_of(spec: DeploymentSpec) -> dict[str, int | None]:
    """Return the maximum number of workers of each tag, or None for no maximum."""
    total = total_limit(spec)
    # If ``max_workers`` is an option but not set, a pool without ``workers`` gets at most one.
    alone = total is None and "max_workers" in spec.options
    found: dict[str, int | None] = {}
    for tag, (_, high) in ranges_of(spec).items():
        most = 1 if alone and spec.components[tag].workers is None else high
        bounds = [n for n in (most, None if total is None else total[1]) if n is not None]
        found[tag] = min(bounds, default=None)
    return found


def bounds_of(
    spec: DeploymentSpec,
    *,
    working: Collection[str],
    known: Collection[str],
    rates: Mapping[str, float],
) -> Bounds:
    """Return the bounds of all pools, in the order of the manifest.

    Each tag with tasks (``working``) gets at least one worker. So does a tag without ``workers``
    that no task names (not ``known``) if the total allows it, because users may submit tasks to it.
    ``rates`` are costs per worker-second. Raises PlanError if a tag with known tasks cannot get a
    worker.
    """
    total = total_limit(spec)
    most = {tag: UNBOUNDED if n is None else n for tag, n in most_of(spec).items()}
    least = {tag: min(low, most[tag]) for tag, (low, _) in ranges_of(spec).items()}
    room = UNBOUNDED if total is None else total[1] - sum(least.values())
    idle = {t for t in spec.components if t not in known and spec.components[t].workers is None}
    for tag in sorted({*working, *idle}, key=lambda t: (t not in known, spec.tags.index(t))):
        if least[tag]:
            continue
        if most[tag] and room > 0:
            least[tag], room = 1, room - 1
        elif tag in known:
            bound = f"{total[0]} {total[1]}" if most[tag] and total else "its maximum of 0 workers"
            raise PlanError(
                f"component {tag!r} has calls to run, but {bound} leaves it no worker",
                hint="raise this limit",
            )
        elif spec.components[tag].workers is None:
            most[tag] = 0
    return Bounds(
        least=list(least.values()),
        most=list(most.values()),
        total=None if total is None else total[1],
        rates=[rates[tag] for tag in spec.components],
        least_total=0 if spec.adaptive is None else spec.adaptive.minimum,
    )
