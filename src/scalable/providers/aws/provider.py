"""The aws provider."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from scalable.providers.aws.traits import TRAITS
from scalable.providers.base import OptionsModel, ValidationReport
from scalable.remote.cloud_provider import CloudProvider

if TYPE_CHECKING:
    from scalable.providers.aws.cloud import AWSCloud
    from scalable.providers.aws.inside import FargateTask, Instance
    from scalable.providers.base import CostEstimate, DeploymentSpec, ScalePlan
    from scalable.providers.price_files import Refreshed


class AWSProvider(CloudProvider):
    """Provider whose scheduler and workers are Fargate tasks or EC2 instances."""

    name = "aws"
    options_model = OptionsModel("scalable.providers.aws.options", "AWSOptions")
    traits = TRAITS

    def validate(self, spec: DeploymentSpec) -> ValidationReport:
        """Check what needs no request: the region, sizes, types, zones, roles, mounts."""
        from scalable.providers.aws.drafts import findings
        from scalable.providers.aws.quote import price_warnings

        report = ValidationReport()
        report.extend(findings(spec))
        report.extend(price_warnings(spec))
        return report

    def check(self, spec: DeploymentSpec) -> ValidationReport:
        """Compare the request with the live account, without creating anything."""
        from scalable.providers.aws.check import check

        return check(spec)

    def render_objects(
        self, spec: DeploymentSpec, counts: Mapping[str, int], name: str | None = None
    ) -> dict[str, bytes]:
        """Return each request of a cluster by file name, without sending any."""
        from scalable.providers.aws.objects import objects

        return objects(spec, counts, name)

    def estimate_cost(self, spec: DeploymentSpec, plan: ScalePlan) -> CostEstimate | None:
        from scalable.providers.aws.quote import estimate_cost

        return estimate_cost(spec, plan)

    def refresh_prices(self, spec: DeploymentSpec) -> Refreshed:
        from scalable.providers.aws.refresh import refresh_prices

        return refresh_prices(spec)

    # Sites ----------------------------------------------------------------------------------------

    def cloud(self, place: Mapping[str, str], spec: DeploymentSpec | None = None) -> AWSCloud:
        from scalable.providers.aws.cloud import AWSCloud
        from scalable.providers.aws.settings import settings_at

        return AWSCloud(settings_at(place, spec), owner=place.get("owner"))

    def machine_side(self) -> FargateTask | Instance:
        from scalable.providers.aws.inside import machine_side

        return machine_side()

    def place_of(self, spec: DeploymentSpec) -> dict[str, str]:
        """Return the site that a target names: ``region`` and ``ecs_cluster``."""
        from scalable.providers.aws.settings import place_of

        return place_of(spec.options)

    def places(self) -> list[dict[str, str]]:
        """Return the sites of the environment, and of earlier clusters from here."""
        from scalable.providers.aws.settings import has_credentials, known_places
        from scalable.records.places import all_places

        return all_places(self.name, known_places()) if has_credentials() else []


#: Another name of the provider.
AWSBatchProvider = AWSProvider
