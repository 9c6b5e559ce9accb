"""The aws provider."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from scalable.providers.aws.traits import TRAITS
from scalable.providers.base import Diagnostic, OptionsModel, ValidationReport

if TYPE_CHECKING:
    from scalable.providers.base import CostEstimate, DeploymentSpec, ScalePlan


#: Option of a target that has no effect -> key of a component that has.
_INSTEAD = {"worker_cpu": "cpus", "worker_mem": "memory"}


class AWSBatchProvider:
    """Validates and plans targets on AWS; clusters cannot be built yet."""

    name = "aws"
    options_model = OptionsModel("scalable.providers.aws.options", "AWSOptions")
    traits = TRAITS

    builds_clusters = False

    def validate(self, spec: DeploymentSpec) -> ValidationReport:
        """Accept what the option model accepted; warn of options that have no effect."""
        from scalable.providers.aws.quote import price_warnings

        report = ValidationReport()
        for option, instead in _INSTEAD.items():
            if option in spec.written_options:
                report.add(
                    Diagnostic(
                        "W_NOT_APPLIED",
                        ("targets", spec.target_name, option),
                        f"{option} has no effect: each component has its own {instead}",
                        hint=f"set {instead} in the components",
                        severity="warning",
                    )
                )
        report.extend(price_warnings(spec))
        return report

    def estimate_cost(self, spec: DeploymentSpec, plan: ScalePlan) -> CostEstimate | None:
        """Return the cost of an hour with the workers of a plan; None where no price is known."""
        from scalable.providers.aws.quote import estimate_cost

        return estimate_cost(spec, plan)

    def build_cluster(self, spec: DeploymentSpec) -> NoReturn:
        """Refuse: not available yet."""
        raise NotImplementedError(
            f"target {spec.target_name!r}: provider 'aws' validates and plans, "
            "but cannot build clusters in this version; use a target of another provider"
        )

    def scale(self, cluster: object, plan: ScalePlan) -> NoReturn:
        """Refuse: there is no cluster."""
        raise NotImplementedError("provider 'aws' cannot scale clusters in this version")

    def close(self, cluster: object) -> None:
        """Do nothing: there is no cluster."""
