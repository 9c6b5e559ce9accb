"""Comparison of a request with the partitions and nodes of a live Slurm. No I/O."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from scalable.providers.slurm.queue import parse_left
from scalable.spec import DeploymentSpec, Diagnostic
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


def _plain(number: float) -> str:
    return f"{number:g}"


def _too_large(
    path: tuple[str, ...],
    asked: float,
    most: float,
    partition: str,
    show: Callable[[float], str] = _plain,
) -> list[Diagnostic]:
    if asked <= most or not most or not math.isfinite(most):
        return []
    message = f"{path[-1]} {show(asked)} exceeds every node of partition {partition}"
    return [_bad(path, message, f"the largest node has {show(most)}")]


def _bad(path: tuple[str, ...], message: str, hint: str) -> Diagnostic:
    return Diagnostic("E_BAD_OPTION", path, message, hint)
