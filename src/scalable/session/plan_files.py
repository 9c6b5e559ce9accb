"""Worker counts from files of plans, from the user, and from a scaler."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalable.errors import ClusterError, PlanError
from scalable.model import DeploymentSpec, Plan, ScalePlan
from scalable.model.plan import PlanFormatError, decode_plan
from scalable.planning import total_limit
from scalable.session.request import Request

if TYPE_CHECKING:
    from scalable.scaling import ScaleDecision


def read_plan(path: str | os.PathLike[str]) -> Plan:
    """Read a plan that was saved, recorded in a run, or printed. May raise PlanError."""
    try:
        return decode_plan(json.loads(Path(path).read_text(encoding="utf-8")))
    except OSError as error:
        raise PlanError(f"plan {path} cannot be read: {error.strerror}") from error
    except PlanFormatError as error:
        raise PlanError(
            f"{path} contains no plan: {error}", hint="write it with `scalable plan --output FILE`"
        ) from error
    except (ValueError, RecursionError) as error:
        raise PlanError(
            f"{path} contains no plan: it is not JSON",
            hint="write it with `scalable plan --output plan.json`",
        ) from error


def checked_plan(request: Request, plan: Plan, source: str = "the plan") -> Plan:
    """Return a plan with the manifest's resources. PlanError if its target or manifest differs."""
    spec = request.spec
    if plan.target_name != request.target:
        raise PlanError(
            f"{source} is for target {plan.target_name!r}, not for {request.target!r}",
            hint=f"plan again for target {request.target!r}",
        )
    if not request.made(plan):
        raise PlanError(
            f"{source} was made from another manifest: its digest is {plan.manifest_lock[:12]}..., "
            f"and that of the manifest for target {request.target!r} is now "
            f"{request.resolved.lock[:12]}...",
            hint="plan again, look at the new plan, and start that one",
        )
    counts = dict(plan.scale_plan.workers_by_tag)
    if counts.keys() != spec.components.keys():
        odd = sorted(counts.keys() ^ spec.components.keys())
        raise PlanError(
            f"{source} does not have the pools of the manifest; they differ in: {', '.join(odd)}",
            hint="plan again, look at the new plan, and start that one",
        )
    warn_of_excess(spec, counts)
    resources = {tag: spec.resources(tag) for tag in counts}
    return replace(
        plan, scale_plan=ScalePlan(counts, resources), manifest_lock=request.resolved.lock
    )


# Checks of the numbers of workers that a user or a scaler requests from a running -----------------


logger = logging.getLogger("scalable.session")


def checked_counts(spec: DeploymentSpec, counts: Mapping[str, Any]) -> dict[str, int]:
    """Return the counts, or raise ClusterError for unknown tags and invalid counts."""
    _check_tags(spec, counts)
    for tag, count in counts.items():
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise ClusterError(f"{tag!r} cannot have {count!r} workers: give 0 or more")
    return dict(counts)


def warn_of_excess(spec: DeploymentSpec, counts: Mapping[str, int]) -> None:
    """Warn if all pools together have more workers than the manifest's total allows."""
    total, after = total_limit(spec), sum(counts.values())
    if total is not None and after > total[1]:
        logger.warning("a total of %d workers exceeds the manifest's %s %d", after, *total)


def decided_counts(
    spec: DeploymentSpec, wanted: Mapping[str, int], decision: ScaleDecision
) -> tuple[dict[str, int], str]:
    """Return the counts after a scaler's decision, limited to the bounds, and a reason."""
    _check_tags(spec, decision.changes)
    now = dict.fromkeys(spec.tags, 0) | dict(wanted)
    decided = decision.counts(now)
    from scalable.clusters.specs import within_bounds

    counts = within_bounds(spec, now, decided)
    held = [f"{tag} is limited to {counts[tag]}" for tag in counts if counts[tag] != decided[tag]]
    if held:
        logger.warning("the manifest's bounds apply: %s", ", ".join(held))
    return counts, "; ".join([decision.reasoning or "a decision", *held])


def _check_tags(spec: DeploymentSpec, tags: Iterable[str]) -> None:
    for tag in tags:
        if tag not in spec.components:
            known = ", ".join(repr(t) for t in spec.tags)
            raise ClusterError(f"no component {tag!r} to scale; known tags: {known}")
