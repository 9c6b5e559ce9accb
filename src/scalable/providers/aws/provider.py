"""The aws provider."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from scalable.errors import ProviderError
from scalable.model import ComponentSpec, DeploymentSpec, Diagnostic
from scalable.providers.aws.settings import (
    EC2,
    has_credentials,
    known_places,
    place_of,
    settings_at,
)
from scalable.providers.aws.shapes import (
    chosen,
    estimate_cost,
    fargate_size,
    offers_for,
    price_warnings,
    region_of,
    types_of,
)
from scalable.providers.aws.traits import TRAITS
from scalable.providers.base import OptionsModel, ValidationReport
from scalable.providers.remote.cloud_provider import CloudProvider

if TYPE_CHECKING:
    from scalable.providers.aws.cloud import AWSCloud
    from scalable.providers.aws.inside import FargateTask, Instance
    from scalable.providers.base import CostEstimate, ScalePlan


class AWSProvider(CloudProvider):
    """Provider whose scheduler and workers are Fargate tasks or EC2 instances."""

    name = "aws"
    options_model = OptionsModel("scalable.providers.aws.options", "AWSOptions")
    traits = TRAITS

    def validate(self, spec: DeploymentSpec) -> ValidationReport:
        """Check region, sizes, types, zones, roles and mounts, without sending a request."""
        report = ValidationReport()
        report.extend(findings(spec))
        report.extend(price_warnings(spec))
        return report

    def check(self, spec: DeploymentSpec) -> ValidationReport:
        from scalable.providers.aws.cloud import check

        return check(spec)

    def render_objects(
        self, spec: DeploymentSpec, counts: Mapping[str, int], name: str | None = None
    ) -> dict[str, bytes]:
        """Return the requests for a cluster by file name, without sending them."""
        from scalable.providers.aws.cloud import objects

        return objects(spec, counts, name)

    def estimate_cost(self, spec: DeploymentSpec, plan: ScalePlan) -> CostEstimate | None:
        return estimate_cost(spec, plan)

    # Places ---------------------------------------------------------------------------------------

    def cloud(self, place: Mapping[str, str], spec: DeploymentSpec | None = None) -> AWSCloud:
        from scalable.providers.aws.cloud import AWSCloud

        return AWSCloud(settings_at(place, spec), owner=place.get("owner"))

    def machine_side(self) -> FargateTask | Instance:
        from scalable.providers.aws.inside import machine_side

        return machine_side()

    def place_of(self, spec: DeploymentSpec) -> dict[str, str]:
        """Return the target's site: ``region`` and ``ecs_cluster``."""
        return place_of(spec.options)

    def places(self) -> list[dict[str, str]]:
        """Return the sites set in the environment, and those of earlier clusters started here."""
        from scalable.records.directory import all_places

        return all_places(self.name, known_places()) if has_credentials() else []


#: Another name of the provider.
AWSBatchProvider = AWSProvider


# Drafts -------------------------------------------------------------------------------------------

#: Options that only EC2 instances have.
_ONLY_EC2 = ("instance_type", "instance_types", "ami", "spot_allocation")
_ROLE = re.compile(r"arn:[a-z-]+:iam::\d{12}:role/[\w+=,.@/-]+")
#: Days for which CloudWatch can keep logs.
_KEPT_DAYS = (1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731, 1096, 1827, 2192, 2557,
              2922, 3288, 3653)  # fmt: skip


def findings(spec: DeploymentSpec) -> list[Diagnostic]:
    """Return the errors and warnings about a target."""
    found = [*_options(spec), *_place(spec)]
    for component in spec.components.values():
        found += _component(spec, component)
    return found


def _options(spec: DeploymentSpec) -> Iterator[Diagnostic]:
    target = ("targets", spec.target_name)
    if spec.options["cluster_type"] != EC2:
        for option in _ONLY_EC2:
            if option in spec.written_options:
                yield Diagnostic(
                    "W_NOT_APPLIED",
                    (*target, option),
                    f"{option} has no effect: tasks of Fargate have no instances",
                    hint="write cluster_type: ec2",
                    severity="warning",
                )
    for option in ("execution_role_arn", "task_role_arn", "manager_role_arn"):
        arn = spec.options[option]
        if arn and not _ROLE.fullmatch(arn):
            yield Diagnostic(
                "E_BAD_OPTION",
                (*target, option),
                f"{arn!r} is not the ARN of a role",
                hint="write it as arn:aws:iam::123456789012:role/NAME",
            )
    for block in spec.options["clients_from"]:
        try:
            ipaddress.ip_network(block)
        except ValueError as error:
            yield Diagnostic(
                "E_BAD_OPTION",
                (*target, "clients_from"),
                f"{block!r} is not a CIDR block: {error}",
                hint="write it as 203.0.113.0/24",
            )
    days = spec.options["logs_kept_days"]
    if days not in _KEPT_DAYS:
        yield Diagnostic(
            "E_BAD_OPTION",
            (*target, "logs_kept_days"),
            f"CloudWatch cannot keep logs for {days} days",
            hint=f"choose one of: {', '.join(map(str, _KEPT_DAYS))}",
        )


def _place(spec: DeploymentSpec) -> Iterator[Diagnostic]:
    target = ("targets", spec.target_name)
    region = region_of(spec.options)
    if region is None:
        yield Diagnostic(
            "W_NOT_APPLIED",
            (*target, "region"),
            "no region is set, and machines cannot be started without one",
            hint="write region: us-east-1, or set AWS_REGION",
            severity="warning",
        )
        return
    for zone in spec.options["zones"]:
        if not zone.startswith(region):
            yield Diagnostic(
                "E_BAD_OPTION", (*target, "zones"), f"zone {zone!r} is not in region {region!r}"
            )


def _component(spec: DeploymentSpec, component: ComponentSpec) -> Iterator[Diagnostic]:
    path = ("components", component.name)
    if spec.options["cluster_type"] == EC2:
        yield from _instances(spec, component)
    elif component.gpus:
        yield Diagnostic(
            "E_BAD_OPTION",
            (*path, "gpus"),
            f"Fargate has no GPUs, but a worker of {component.name!r} requests {component.gpus}",
            hint="write cluster_type: ec2 in the target",
        )
    else:
        try:
            fargate_size(component.cpus, component.memory_bytes)
        except ValueError as error:
            yield Diagnostic(
                "E_BAD_OPTION", path, str(error), hint="write cluster_type: ec2 in the target"
            )
    if component.mounts:
        yield Diagnostic(
            "W_NOT_APPLIED",
            (*path, "mounts"),
            "mounts have no effect: machines on AWS do not share files with this one",
            hint="read and write data in object storage, such as s3://",
            severity="warning",
        )
    script = component.preload_script
    if script is not None and not script.startswith("/"):
        yield Diagnostic(
            "E_BAD_OPTION",
            (*path, "preload_script"),
            f"preload_script {script!r} is a file on this machine, which containers cannot read",
            hint="put it into the image, and write its absolute path there",
        )


def _instances(spec: DeploymentSpec, component: ComponentSpec) -> Iterator[Diagnostic]:
    if region_of(spec.options) is None:
        return
    try:
        chosen(
            offers_for(region_of(spec.options), spec),
            types_of(spec.options),
            component.cpus,
            component.memory_bytes or 0,
            component.gpus,
        )
    except ProviderError as error:
        where = ("targets", spec.target_name, "instance_type")
        path = where if types_of(spec.options) else ("components", component.name)
        yield Diagnostic("E_BAD_OPTION", path, error.message, hint=error.hint)
