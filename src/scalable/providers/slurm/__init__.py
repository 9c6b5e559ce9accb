"""Slurm clusters: pools whose workers are jobs."""

from scalable.providers.slurm.provider import SlurmProvider

PROVIDER = SlurmProvider

__all__ = ["SlurmProvider"]
