"""The fixed sizes of Fargate tasks, and the rounding of a worker's size to one of them."""

from __future__ import annotations

import math
from dataclasses import dataclass

MIB = 2**20
#: CPU units -> memory in MiB: the first, the last and the step (AWS's developer guide for ECS).
_MEMORY: dict[int, tuple[int, ...]] = {
    256: (512, 1024, 2048),
    512: tuple(range(1024, 4096 + 1, 1024)),
    1024: tuple(range(2048, 8192 + 1, 1024)),
    2048: tuple(range(4096, 16384 + 1, 1024)),
    4096: tuple(range(8192, 30720 + 1, 1024)),
    8192: tuple(range(16384, 61440 + 1, 4096)),
    16384: tuple(range(32768, 122880 + 1, 8192)),
}


@dataclass(frozen=True)
class FargateSize:
    """A size that Fargate accepts.

    Attributes
    ----------
    cpu_units
        1024 for each vCPU, as a task definition writes it.
    memory_mib
        Memory in MiB, as a task definition writes it.
    """

    cpu_units: int
    memory_mib: int

    @property
    def vcpus(self) -> float:
        """Number of vCPUs."""
        return self.cpu_units / 1024

    @property
    def memory_bytes(self) -> int:
        """Memory in bytes."""
        return self.memory_mib * MIB

    def __str__(self) -> str:
        return f"{self.vcpus:g} vCPU, {self.memory_mib / 1024:g} GB"


#: All sizes, by vCPUs and memory.
SIZES = tuple(FargateSize(cpu, memory) for cpu, steps in _MEMORY.items() for memory in steps)


def fargate_size(cpus: float, memory_bytes: int | None = None) -> FargateSize:
    """Return the smallest size of Fargate that holds a worker.

    The size with the fewest vCPUs is taken, then the one with the least memory: a vCPU costs as
    much as nine GB.

    Parameters
    ----------
    cpus
        Number of cores of the worker.
    memory_bytes
        Memory of the worker; None for no particular amount.

    Raises
    ------
    ValueError
        If no size holds the worker; the message says the limit.
    """
    least = math.ceil((memory_bytes or 0) / MIB)
    for size in SIZES:
        if size.vcpus >= cpus - 1e-9 and size.memory_mib >= least:
            return size
    largest = SIZES[-1]
    raise ValueError(
        f"{cpus:g} cpus with {least / 1024:g} GB do not fit Fargate, "
        f"whose largest size is {largest}"
    )


def rounding(tag: str, cpus: float, memory_bytes: int | None = None) -> str | None:
    """Return a sentence that says to which size a worker is rounded up; None if it fits exactly.

    Parameters
    ----------
    tag
        Name of the component.
    cpus, memory_bytes
        As in :func:`fargate_size`.
    """
    size = fargate_size(cpus, memory_bytes)
    if size.vcpus == cpus and (memory_bytes is None or size.memory_bytes == memory_bytes):
        return None
    asked = f"{cpus:g} cpu{'s' * (cpus != 1)}"
    if memory_bytes is not None:
        asked += f" and {memory_bytes / 2**30:.4g} GiB"
    return f"Workers of {tag!r} ask for {asked}; Fargate rounds them up to {size}."
