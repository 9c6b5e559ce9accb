"""The resources of one worker."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from scalable.units import parse_bytes, parse_walltime


@dataclass(frozen=True)
class ResourceRequest:
    """The resources of one worker.

    Attributes
    ----------
    cpus
        Number of cores reserved for the worker; not enforced if workers are plain processes.
    memory
        Memory as the manifest writes it (``"20G"``). None requests no particular amount.
    walltime
        Time limit as the manifest writes it (``"04:00:00"``), or None if the target has no limit.
    gpus
        Number of GPUs.
    """

    cpus: float = 1
    memory: str | None = None
    walltime: str | None = None
    gpus: int = 0

    @cached_property
    def memory_bytes(self) -> int | None:
        """Memory of one worker in bytes, or None."""
        return None if self.memory is None else parse_bytes(self.memory)

    @cached_property
    def walltime_s(self) -> float | None:
        """The walltime in seconds, or None."""
        return None if self.walltime is None else parse_walltime(self.walltime)

    def to_dict(self) -> dict[str, Any]:
        """Return the attributes as plain JSON values."""
        return asdict(self)

    def __repr__(self) -> str:
        shown = [f"cpus={self.cpus:g}"]
        shown += [f"memory={self.memory!r}"] if self.memory is not None else []
        shown += [f"walltime={self.walltime!r}"] if self.walltime is not None else []
        shown += [f"gpus={self.gpus}"] if self.gpus else []
        return f"ResourceRequest({', '.join(shown)})"
