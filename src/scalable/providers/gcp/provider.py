"""The gcp provider."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from scalable.model import ComponentSpec, DeploymentSpec, Diagnostic
from scalable.providers.base import OptionsModel, ValidationReport
from scalable.providers.gcp.config import (
    Config,
    candidates,
    config_of,
    estimate_cost,
    offers_for,
    offers_in,
    price_warnings,
    region_of,
    shape_named,
)
from scalable.providers.gcp.traits import TRAITS
from scalable.providers.remote.cloud_provider import CloudProvider

if TYPE_CHECKING:
    from scalable.model import CostEstimate, ScalePlan
    from scalable.providers.gcp.cloud import GoogleCloud
    from scalable.providers.gcp.inside import GoogleMachine

#: Maximum number of seconds by which machines outlive the `time_to_live` of their cluster.
MARGIN_S = 3600.0


class GCPProvider(CloudProvider):
    """Provider whose scheduler and workers are Compute Engine instances."""

    name = "gcp"
    options_model = OptionsModel("scalable.providers.gcp.options", "GCPOptions")
    traits = TRAITS

    def validate(self, spec: DeploymentSpec) -> ValidationReport:
        """Check region, zones, machine types and mounts, without sending a request."""
        report = ValidationReport()
        report.extend(findings(spec))
        report.extend(price_warnings(spec))
        return report

    def estimate_cost(self, spec: DeploymentSpec, plan: ScalePlan) -> CostEstimate | None:
        return estimate_cost(spec, plan)

    def check(self, spec: DeploymentSpec) -> ValidationReport:
        """Compare region, quotas, machine types, network and permissions with the live project."""
        from scalable.providers.gcp.cloud import check

        return check(spec, self.cloud({}, spec))

    # Sites ----------------------------------------------------------------------------------------

    def cloud(self, place: Mapping[str, str], spec: DeploymentSpec | None = None) -> GoogleCloud:
        from scalable.providers.gcp.cloud import GoogleCloud

        if spec is None:
            config = Config(region=place["region"], project=place.get("project", ""))
        else:
            life = None if spec.time_to_live_s is None else spec.time_to_live_s + MARGIN_S
            config = config_of(spec.options, life)
            if place:
                config = dataclasses.replace(
                    config, region=place["region"], project=place.get("project", "")
                )
            config = dataclasses.replace(config, offers=tuple(offers_for(config.region, spec)))
        return GoogleCloud(config, owner=place.get("owner", ""))

    def machine_side(self) -> GoogleMachine:
        from scalable.providers.gcp.inside import GoogleMachine

        return GoogleMachine()

    def place_of(self, spec: DeploymentSpec) -> dict[str, str]:
        """Return the target's site: ``project`` and ``region``."""
        config = config_of(spec.options)
        return {"project": config.project or default_project(), "region": config.region}

    def places(self) -> list[dict[str, str]]:
        """Return the sites set in the environment, and those of earlier clusters started here."""
        from scalable.records.directory import all_places

        if not has_credentials():
            return []
        region = region_of({})
        present = [] if region is None else [{"project": default_project(), "region": region}]
        return all_places(self.name, present)


def default_project() -> str:
    """Return the project in the environment variables, or an empty string without one."""
    names = ("GOOGLE_CLOUD_PROJECT", "CLOUDSDK_CORE_PROJECT")
    return next((os.environ[name] for name in names if os.environ.get(name)), "")


def has_credentials() -> bool:
    """Return whether the environment or files contain credentials, without validating them."""
    if os.environ.get("GOOGLE_APPLICATION_CREDENTIALS") or os.environ.get("GCE_METADATA_HOST"):
        return True
    folder = os.environ.get("CLOUDSDK_CONFIG")
    known = Path(folder) if folder else Path.home() / ".config" / "gcloud"
    return bool((known / "application_default_credentials.json").exists())


# Drafts -------------------------------------------------------------------------------------------


def findings(spec: DeploymentSpec) -> list[Diagnostic]:
    """Return the errors and warnings about a target."""
    found = list(_place(spec))
    if region_of(spec.options) is None:
        return found
    config = config_of(spec.options)
    for component in spec.components.values():
        found += _component(spec, config, component)
    return found


def _place(spec: DeploymentSpec) -> Iterator[Diagnostic]:
    target = ("targets", spec.target_name)
    region, zone = spec.options.get("region"), spec.options.get("zone")
    if region_of(spec.options) is None:
        yield Diagnostic(
            "W_NOT_APPLIED",
            (*target, "region"),
            "no region is set, and machines cannot be started without one",
            hint="write region: us-central1, or set GOOGLE_CLOUD_REGION",
            severity="warning",
        )
    if region and zone and not zone.startswith(f"{region}-"):
        yield Diagnostic(
            "E_BAD_OPTION", (*target, "zone"), f"zone {zone!r} is not in region {region!r}"
        )


def _component(
    spec: DeploymentSpec, config: Config, component: ComponentSpec
) -> Iterator[Diagnostic]:
    path = ("components", component.name)
    memory = component.memory_bytes or 0
    wanted = f"{component.cpus:g} cpus, {memory / 2**30:.1f} GiB, {component.gpus} gpus"
    if not config.instance_types:
        if not candidates(config, component.cpus, memory, component.gpus):
            yield Diagnostic(
                "E_BAD_OPTION",
                path,
                f"no known machine type is large enough for a worker of {component.name!r} "
                f"({wanted})",
                hint="set instance_type of the target",
            )
    else:
        offers = offers_in(config)
        for name in config.instance_types:
            shape = shape_named(name, offers)
            if shape is None or shape.holds(component.cpus, memory, component.gpus):
                continue
            if shape.gpus and not component.gpus:
                continue  # more expensive than needed, but requested
            yield Diagnostic(
                "E_BAD_OPTION",
                ("targets", spec.target_name, "instance_type"),
                f"{name} ({shape.cpus:g} cpus, {shape.memory_bytes / 2**30:g} GiB, {shape.gpus} "
                f"gpus) is too small for a worker of {component.name!r} ({wanted})",
            )
    if component.mounts:
        yield Diagnostic(
            "W_NOT_APPLIED",
            (*path, "mounts"),
            "mounts have no effect: machines on Google Cloud do not share files with this one",
            hint="read and write data in object storage, such as gs://",
            severity="warning",
        )
