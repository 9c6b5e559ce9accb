"""Comparison of a request with the partitions and nodes of a live Slurm."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from scalable.containers import ContainerRequest, check_image_file, image_findings
from scalable.errors import ProviderError
from scalable.model import ComponentSpec, DeploymentSpec, Diagnostic, ValidationReport
from scalable.providers.slurm.api import Slurm, address_of, wait_for
from scalable.providers.slurm.queue import parse_left
from scalable.providers.slurm.worker import JobRequest, container_of
from scalable.units import as_written, like

#: Key-value pairs of one line of ``scontrol show partition`` or ``scontrol show node``.
Record = Mapping[str, str]
MIB = 2**20


def findings(
    spec: DeploymentSpec, partitions: Sequence[Record], nodes: Sequence[Record]
) -> list[Diagnostic]:
    """Return a diagnostic for each part of a request that this Slurm cannot provide."""
    target = ("targets", spec.target_name)
    partition = chosen_partition(spec.options.get("queue"), partitions)
    if partition is None:
        known = ", ".join(sorted(p.get("PartitionName", "?") for p in partitions))
        queue = spec.options.get("queue")
        message = f"there is no partition {queue!r}" if queue else "there is no default partition"
        return [_bad((*target, "queue"), message, f"known partitions: {known}")]
    found = _walltime(spec, partition)
    name = partition["PartitionName"]
    here = [node for node in nodes if name in node.get("Partitions", "").split(",")]
    for tag, component in spec.components.items():
        found += _too_large(("components", tag, "cpus"), component.cpus, _cpus(here), name)
        asked = component.memory_bytes
        if asked is not None:
            # Show the reservation as it is written, and the node's memory in the same unit.
            shown = partial(_shown_beside, asked)
            found += _too_large(("components", tag, "memory"), asked, _memory(here), name, shown)
    return found


def _shown_beside(asked: int, memory: float) -> str:
    return as_written(asked) if memory == asked else like(asked, memory)


def chosen_partition(queue: str | None, partitions: Sequence[Record]) -> Record | None:
    """Return the named partition or the site's default, or None if it does not exist."""
    for partition in partitions:
        named = partition.get("PartitionName")
        if (queue is None and partition.get("Default") == "YES") or named == queue:
            return partition
    return None


def _walltime(spec: DeploymentSpec, partition: Record) -> list[Diagnostic]:
    limit = parse_left(partition.get("MaxTime", ""))
    if spec.walltime_s is None or limit is None or spec.walltime_s <= limit:
        return []
    asked, name = spec.options["walltime"], partition["PartitionName"]
    return [
        _bad(
            ("targets", spec.target_name, "walltime"),
            f"walltime {asked} exceeds the limit of partition {name}",
            f"the limit is {partition['MaxTime']}",
        )
    ]


def _cpus(nodes: Iterable[Record]) -> float:
    return max((float(n["CPUTot"]) for n in nodes if n.get("CPUTot", "").isdigit()), default=0.0)


def _memory(nodes: Iterable[Record]) -> float:
    sizes = (float(n["RealMemory"]) for n in nodes if n.get("RealMemory", "").isdigit())
    return max(sizes, default=0.0) * MIB


def _format_number(number: float) -> str:
    return f"{number:g}"


def _too_large(
    path: tuple[str, ...],
    asked: float,
    most: float,
    partition: str,
    show: Callable[[float], str] = _format_number,
) -> list[Diagnostic]:
    if asked <= most or not most or not math.isfinite(most):
        return []
    message = f"{path[-1]} {show(asked)} exceeds every node of partition {partition}"
    return [_bad(path, message, f"the largest node has {show(most)}")]


def _bad(path: tuple[str, ...], message: str, hint: str) -> Diagnostic:
    return Diagnostic("E_BAD_OPTION", path, message, hint)


# Live ---------------------------------------------------------------------------------------------


def check(
    spec: DeploymentSpec, scripts: Mapping[str, str], requests: Mapping[str, JobRequest]
) -> ValidationReport:
    """Compare a request with a live Slurm and this machine, or raise ProviderError."""
    report = wait_for(_check(spec, scripts))
    if report.ok:
        found = {tag: container_of(request) for tag, request in requests.items()}
        asked = {tag: container for tag, container in found.items() if container is not None}
        here = {tag: c for tag, c in asked.items() if shutil.which(c.runtime)}
        report.extend(image_findings({tag: _trial(c) for tag, c in here.items()}))
        report.extend(_untried(tag, c) for tag, c in asked.items() if tag not in here)
    return report


def _trial(container: ContainerRequest) -> ContainerRequest:
    """Return the workers' container for a trial on this machine."""
    # The cluster's directory, which workers mount, does not exist yet.
    mounts = {path: inside for path, inside in container.mounts.items() if Path(path).exists()}
    return replace(container, mounts=mounts)


def _untried(tag: str, container: ContainerRequest) -> Diagnostic:
    """Return the finding about an image whose runtime is not on this machine."""
    try:
        check_image_file(container)
    except ProviderError as error:
        return Diagnostic("E_BAD_OPTION", ("components", tag, "image"), error.message, error.hint)
    return Diagnostic(
        "W_NOT_CHECKED",
        ("components", tag, "image"),
        f"{container.runtime} is not on PATH here, so image {container.image!r} was not started; "
        "if the nodes do not have it either, every job fails",
        hint=f"run `srun {container.runtime} --version`, or load the module of the runtime",
        severity="warning",
    )


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
            f"{host} does not exist on this machine, so it cannot be mounted",
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
