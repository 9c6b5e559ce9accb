"""Plans that were made before: read from files, and checked before they are started."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

from scalable.errors import PlanError
from scalable.session.counts import warn_of_excess
from scalable.session.request import Request
from scalable.spec import Plan, ScalePlan
from scalable.spec.plan_format import PlanFormatError, decode_plan


def read_plan(path: str | os.PathLike[str]) -> Plan:
    """Return the plan in a file.

    Parameters
    ----------
    path
        File that ``scalable plan --output plan.json`` or ``plan.save`` wrote, the ``plan.json`` of
        a recorded run, or the output of ``scalable plan --format json``.

    Raises
    ------
    PlanError
        When the file cannot be read or contains no plan.
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
    """Return a plan that was made before, to be started for a request.

    Of the plan, the worker counts are used; the resources of workers are the manifest's.

    Parameters
    ----------
    request
        The manifest with its chosen target.
    plan
        The plan.
    source
        Name of the plan in messages.

    Raises
    ------
    PlanError
        When the plan is for another target, or the manifest has changed since it was made.
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
