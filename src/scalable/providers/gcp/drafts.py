"""Findings about a target that need no request."""

from __future__ import annotations

from collections.abc import Iterator

from scalable.providers.gcp.config import Config, config_of
from scalable.providers.gcp.quote import region_of
from scalable.providers.gcp.shapes import candidates, offers_in, shape_named
from scalable.spec import ComponentSpec, DeploymentSpec, Diagnostic


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
            "no region is named, and machines cannot be started without one",
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
                f"no machine type that is known here holds a worker of {component.name!r} "
                f"({wanted})",
                hint="name one in the target's instance_type",
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
            "mounts have no effect: machines of Google Cloud share no files with this one",
            hint="read and write through a storage such as gs://",
            severity="warning",
        )
