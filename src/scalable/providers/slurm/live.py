"""The check of a request against a live Slurm and this machine."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from scalable.containers import ContainerRequest, image_findings
from scalable.errors import ProviderError
from scalable.providers.slurm.api import Slurm, wait_for
from scalable.providers.slurm.check import findings
from scalable.providers.slurm.network import address_of
from scalable.providers.slurm.worker import JobRequest, container_of
from scalable.spec import ComponentSpec, DeploymentSpec, Diagnostic, ValidationReport


def check(
    spec: DeploymentSpec, scripts: Mapping[str, str], requests: Mapping[str, JobRequest]
) -> ValidationReport:
    """Compare a request with a live Slurm and this machine. Nothing is submitted.
    Slurm checks the scripts with ``--test-only``. Images are checked last. ``scripts`` and
    ``requests`` are keyed by tag. Raise ProviderError if Slurm does not answer.
    """
    report = wait_for(_check(spec, scripts))
    if report.ok:
        report.extend(image_findings({tag: _trial(request) for tag, request in requests.items()}))
    return report


def _trial(request: JobRequest) -> ContainerRequest | None:
    """Return the workers' container for a trial on this machine, or None if it cannot run here."""
    container = container_of(request)
    if container is None or shutil.which(container.runtime) is None:
        return None
    # The cluster's directory, which workers mount, does not exist yet.
    mounts = {path: inside for path, inside in container.mounts.items() if Path(path).exists()}
    return replace(container, mounts=mounts)


async def _check(spec: DeploymentSpec, scripts: Mapping[str, str]) -> ValidationReport:
    slurm, report = Slurm(), ValidationReport()
    report.extend(findings(spec, await slurm.partitions(), await slurm.nodes()))
    interface = spec.options["interface"]
    if interface is not None:
        try:
            address_of(interface)
        except ProviderError as error:
            path = ("targets", spec.target_name, "interface")
            report.add(Diagnostic("E_BAD_OPTION", path, error.message, error.hint))
    for tag, component in spec.components.items():
        report.extend(_missing_mounts(component))
        if report.ok:
            report.extend(await _asked(slurm, tag, scripts[tag]))
    return report


def _missing_mounts(component: ComponentSpec) -> list[Diagnostic]:
    return [
        Diagnostic(
            "E_BAD_OPTION",
            ("components", component.name, "mounts", host),
            f"there is no {host} here to mount",
        )
        for host in component.mounts
        if not Path(host).expanduser().exists()
    ]


async def _asked(slurm: Slurm, tag: str, script: str) -> list[Diagnostic]:
    """Return Slurm's objections to a component's script, without submitting it."""
    try:
        await slurm.submit(script, array=None, comment="scalable validate", test_only=True)
    except ProviderError as error:
        if error.transient:
            raise
        return [Diagnostic("E_BAD_OPTION", ("components", tag), error.message)]
    return []
