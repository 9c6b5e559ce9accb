"""The gcp provider."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from scalable.providers.base import OptionsModel, ValidationReport
from scalable.providers.gcp.traits import TRAITS

if TYPE_CHECKING:
    from scalable.providers.base import DeploymentSpec, ScalePlan


class GCPProvider:
    """Validates and plans targets on Google Cloud; clusters cannot be built yet."""

    name = "gcp"
    options_model = OptionsModel("scalable.providers.gcp.options", "GCPOptions")
    traits = TRAITS

    builds_clusters = False

    def validate(self, spec: DeploymentSpec) -> ValidationReport:  # noqa: ARG002
        """Accept what the option model accepted."""
        return ValidationReport()

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
