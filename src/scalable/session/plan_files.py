"""Existing plans: read from files, and checked before they are started."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

from scalable.errors import PlanError
from scalable.model import Plan, ScalePlan
from scalable.model.plan import PlanFormatError, decode_plan
from scalable.session.counts import warn_of_excess
from scalable.session.request import Request


def read_plan(path: str | os.PathLike[str]) -> Plan:
    """Return the plan in a file, or raise PlanError.
    The file is a saved plan, the ``plan.json`` of a run, or output of ``scalable plan``.
    """
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
    """Return a plan for a request, with the plan's worker counts and the manifest's resources.
    A plan for another target, or from another manifest, raises PlanError.
    """
    spec = request.spec
    if plan.target_name != request.target:
        raise PlanError(
            f"{source} is for target {plan.target_name!r}, not for {request.target!r}",
            hint=f"plan again for target {request.target!r}",
        )
    if not request.made(plan):
        raise PlanError(
            f"{source} was made from another manifest: its lock is {plan.manifest_lock[:12]}..., "
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
