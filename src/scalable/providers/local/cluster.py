"""The cluster that the local provider builds."""

from __future__ import annotations

from scalable.manager.pool_cluster import PoolCluster
from scalable.providers.local.traits import TRAITS


class LocalPoolCluster(PoolCluster):
    """A scheduler in this process, and pools of workers on this machine."""

    provider_name = "local"
    starting = TRAITS.starting
