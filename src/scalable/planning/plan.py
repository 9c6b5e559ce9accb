"""Puts a plan together."""

from __future__ import annotations

from scalable.planning.counts import expected_work, worker_counts
from scalable.spec import CostEstimate, DeploymentSpec, Plan, ScalePlan


def make_plan(spec: DeploymentSpec, manifest_lock: str) -> Plan:
    """The plan that the manifest alone gives. Deterministic.

    Parameters
    ----------
    spec
        A request without conflicts.
    manifest_lock
        Digest of the resolved manifest.
    """
    counts = worker_counts(spec)
    scale_plan = ScalePlan(counts, {tag: spec.resources(tag) for tag in counts})
    return Plan(
        target_name=spec.target_name,
        provider_name=spec.provider_name,
        manifest_lock=manifest_lock,
        scale_plan=scale_plan,
        task_to_component={task.name: task.component for task in spec.tasks.values()},
        cost_estimate=estimate_cost(spec, scale_plan),
    )


def estimate_cost(spec: DeploymentSpec, plan: ScalePlan) -> CostEstimate | None:
    """What the planned workers cost at the target's own price, or None where it gives none."""
    price = spec.price_per_core_hour
    if price is None:
        return None
    by_tag = {
        tag: count * spec.components[tag].cpus * price for tag, count in plan.workers_by_tag.items()
    }
    work = expected_work(spec.tasks)
    total = None
    if work and all(tag in work for tag in by_tag):
        total = sum(work[tag] * spec.components[tag].cpus * price / 3600 for tag in by_tag)
    return CostEstimate(
        total=total,
        by_tag=by_tag,
        hourly=sum(by_tag.values()),
        source=f"price_per_core_hour of target {spec.target_name!r}",
    )
