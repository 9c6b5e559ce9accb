"""The gcp provider."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from scalable.providers.base import OptionsModel, ValidationReport
from scalable.providers.gcp.traits import TRAITS

if TYPE_CHECKING:
    from scalable.providers.base import CostEstimate, DeploymentSpec, ScalePlan


class GCPProvider:
    """Validates and plans targets on Google Cloud; clusters cannot be built yet."""

    name = "gcp"
    options_model = OptionsModel("scalable.providers.gcp.options", "GCPOptions")
    traits = TRAITS

    builds_clusters = False

    def validate(self, spec: DeploymentSpec) -> ValidationReport:
        """Accept what the option model accepted; warn of missing prices."""
        from scalable.providers.gcp.quote import price_warnings

        report = ValidationReport()
        report.extend(price_warnings(spec))
        return report

    def estimate_cost(self, spec: DeploymentSpec, plan: ScalePlan) -> CostEstimate | None:
        """Return the cost of an hour with the workers of a plan; None where no price is known."""
        from scalable.providers.gcp.quote import estimate_cost

        return estimate_cost(spec, plan)

    def build_cluster(self, spec: DeploymentSpec) -> NoReturn:
        """Refuse: not available yet."""
        raise NotImplementedError(
            f"target {spec.target_name!r}: provider 'gcp' validates and plans, "
            "but cannot build clusters in this version; use a target of another provider"
        )

    def scale(self, cluster: object, plan: ScalePlan) -> NoReturn:
        """Refuse: there is no cluster."""
        raise NotImplementedError("provider 'gcp' cannot scale clusters in this version")

    def close(self, cluster: object) -> None:
        """Do nothing: there is no cluster."""
