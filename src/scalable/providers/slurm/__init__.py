"""Slurm clusters: options and offline validation."""

from scalable.providers.slurm.cluster import SlurmCluster
from scalable.providers.slurm.provider import SlurmProvider

PROVIDER = SlurmProvider

__all__ = ["SlurmCluster", "SlurmProvider"]
