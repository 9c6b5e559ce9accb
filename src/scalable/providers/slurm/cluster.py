"""The imperative face of Slurm clusters."""

from __future__ import annotations

from typing import Any


class SlurmCluster:
    """Not available in this version: making one raises NotImplementedError."""

    def __init__(self, *_: Any, **__: Any) -> None:
        raise NotImplementedError(
            "SlurmCluster is not available in this version; use a local target"
        )
