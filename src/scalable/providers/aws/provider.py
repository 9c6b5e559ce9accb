"""The aws provider."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from scalable.providers.aws.traits import TRAITS
from scalable.providers.base import OptionsModel, ValidationReport

if TYPE_CHECKING:
    from scalable.providers.base import DeploymentSpec, ScalePlan


class AWSBatchProvider:
    """Validates and plans targets on AWS; clusters cannot be built yet."""

    name = "aws"
    options_model = OptionsModel("scalable.providers.aws.options", "AWSOptions")
    traits = TRAITS

    builds_clusters = False

    def validate(self, spec: DeploymentSpec) -> ValidationReport:  # noqa: ARG002
        """Accept what the option model accepted."""
        return ValidationReport()

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
