"""Fixed sizes of Fargate tasks, and the rounding of a worker's size to one of them."""

from __future__ import annotations

import math
from dataclasses import dataclass

MIB = 2**20
#: Memory sizes in MiB by CPU units (AWS's developer guide for ECS).
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
    """A size that Fargate accepts, in the units of a task definition."""

    #: 1024 for each vCPU.
    cpu_units: int
    memory_mib: int

    @property
    def vcpus(self) -> float:
        return self.cpu_units / 1024

    @property
    def memory_bytes(self) -> int:
        return self.memory_mib * MIB

    def __str__(self) -> str:
        return f"{self.vcpus:g} vCPU, {self.memory_mib / 1024:g} GB"


#: All sizes, by vCPUs and memory.
SIZES = tuple(FargateSize(cpu, memory) for cpu, steps in _MEMORY.items() for memory in steps)


def fargate_size(cpus: float, memory_bytes: int | None = None) -> FargateSize:
    """Return the smallest Fargate size for a worker: the fewest vCPUs, then the least memory.

    A vCPU costs as much as nine GB. Raises ValueError with the limit if no size is large enough.
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
    """Return a sentence about the size that a worker is rounded up to, or None if it fits."""
    size = fargate_size(cpus, memory_bytes)
    if size.vcpus == cpus and (memory_bytes is None or size.memory_bytes == memory_bytes):
        return None
    asked = f"{cpus:g} cpu{'s' * (cpus != 1)}"
    if memory_bytes is not None:
        asked += f" and {memory_bytes / 2**30:.4g} GiB"
    return f"Workers of {tag!r} ask for {asked}; Fargate rounds them up to {size}."
