"""Slurm clusters: pools with jobs as workers."""

from typing import TYPE_CHECKING, Any

from scalable.providers.slurm.traits import TRAITS

if TYPE_CHECKING:
    from scalable.providers.slurm.provider import SlurmProvider

__all__ = ["TRAITS", "SlurmProvider"]


def __getattr__(name: str) -> Any:
    # The traits are read without the provider.
    if name in ("PROVIDER", "SlurmProvider"):
        from scalable.providers.slurm.provider import SlurmProvider

        return SlurmProvider
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
