"""Checks of the numbers of workers that a user or a scaler requests from a running session."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from scalable.clusters.specs import within_bounds
from scalable.errors import ClusterError
from scalable.model import DeploymentSpec
from scalable.planning import total_limit

if TYPE_CHECKING:
    from scalable.scaling import ScaleDecision

logger = logging.getLogger("scalable.session")


def checked_counts(spec: DeploymentSpec, counts: Mapping[str, Any]) -> dict[str, int]:
    """Return the counts, or raise ClusterError for unknown tags and invalid counts."""
    _check_tags(spec, counts)
    for tag, count in counts.items():
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise ClusterError(f"{tag!r} cannot have {count!r} workers")
    return dict(counts)


def warn_of_excess(spec: DeploymentSpec, counts: Mapping[str, int]) -> None:
    """Log a warning if all pools together have more workers than the manifest's total."""
    total, after = total_limit(spec), sum(counts.values())
    if total is not None and after > total[1]:
        logger.warning("a total of %d workers exceeds the manifest's %s %d", after, *total)


def decided_counts(
    spec: DeploymentSpec, wanted: Mapping[str, int], decision: ScaleDecision
) -> tuple[dict[str, int], str]:
    """Return the counts after a scaler's decision, within the manifest's bounds, and a reason.
    An unknown tag in the decision raises ClusterError.
    """
    _check_tags(spec, decision.changes)
    now = dict.fromkeys(spec.tags, 0) | dict(wanted)
    decided = decision.counts(now)
    counts = within_bounds(spec, now, decided)
    held = [f"{tag} is held to {counts[tag]}" for tag in counts if counts[tag] != decided[tag]]
    if held:
        logger.warning("the manifest's bounds hold: %s", ", ".join(held))
    return counts, "; ".join([decision.reasoning or "a decision", *held])


def _check_tags(spec: DeploymentSpec, tags: Iterable[str]) -> None:
    for tag in tags:
        if tag not in spec.components:
            known = ", ".join(repr(t) for t in spec.tags)
            raise ClusterError(f"no component {tag!r} to scale; known tags: {known}")
