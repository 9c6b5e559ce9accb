"""What a run will take: workers for each tag, money, and what was decided why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from scalable.spec.resources import ResourceRequest


@dataclass(frozen=True)
class ScalePlan:
    """Absolute worker counts for tags; a tag that is not named stays as it is, 0 empties a pool.

    Attributes
    ----------
    workers_by_tag
        Tag -> workers.
    resources_by_tag
        Tag -> what one of these workers asks for.
    """

    workers_by_tag: Mapping[str, int]
    resources_by_tag: Mapping[str, ResourceRequest] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """The attributes as plain JSON values."""
        return {
            "workers_by_tag": dict(self.workers_by_tag),
            "resources_by_tag": {t: r.to_dict() for t, r in self.resources_by_tag.items()},
        }

    def __str__(self) -> str:
        shown = []
        for tag, count in self.workers_by_tag.items():
            resources = self.resources_by_tag.get(tag)
            shown.append(
                f"{tag!r}: " + (f"{resources!r}, " if resources else "") + f"count={count}"
            )
        return "{" + "; ".join(shown) + "}"


@dataclass(frozen=True)
class CostEstimate:
    """What a plan will cost.

    Attributes
    ----------
    total
        For the whole run, or None where its length is not known.
    by_tag
        Tag -> share of ``hourly``.
    hourly
        For each hour with all planned workers up.
    currency
        As the prices are quoted.
    source, as_of
        Where the prices come from, and their date (ISO 8601) or None.
    """

    total: float | None
    by_tag: Mapping[str, float]
    hourly: float
    currency: str = "USD"
    source: str = ""
    as_of: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """The attributes as plain JSON values."""
        return {
            "total": self.total,
            "by_tag": dict(self.by_tag),
            "hourly": self.hourly,
            "currency": self.currency,
            "source": self.source,
            "as_of": self.as_of,
        }


@dataclass(frozen=True)
class Plan:
    """What a run will take.

    Attributes
    ----------
    target_name, provider_name
        Where it runs.
    manifest_lock
        64 hexadecimal digits over the resolved manifest; independent of the order of keys,
        comments and formatting.
    scale_plan
        Workers and what each of them asks for.
    task_to_component
        Task name -> tag.
    cost_estimate
        None where no price is known.
    """

    target_name: str
    provider_name: str
    manifest_lock: str
    scale_plan: ScalePlan
    task_to_component: Mapping[str, str] = field(default_factory=dict)
    cost_estimate: CostEstimate | None = None

    def to_dict(self) -> dict[str, Any]:
        """The attributes as plain JSON values, under their own names."""
        return {
            "target_name": self.target_name,
            "provider_name": self.provider_name,
            "manifest_lock": self.manifest_lock,
            "scale_plan": self.scale_plan.to_dict(),
            "task_to_component": dict(self.task_to_component),
            "cost_estimate": None if self.cost_estimate is None else self.cost_estimate.to_dict(),
        }
