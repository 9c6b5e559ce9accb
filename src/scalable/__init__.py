"""One manifest, one plan, pools of tagged workers on one Dask scheduler, anywhere.
Public names are loaded on first use (PEP 562), so that ``import scalable`` is fast. Those for
authors of providers are in ``scalable.providers``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scalable.cache.calls import cached
    from scalable.cache.files import File
    from scalable.cache.key import KeyOptions
    from scalable.client.client import ScalableClient
    from scalable.client.failures import CallFailed, Sweep
    from scalable.clusters.connecting import connect
    from scalable.clusters.discovery import list_clusters
    from scalable.errors import (
        ClusterError,
        ManifestError,
        PlanError,
        ProviderError,
        RunError,
        ScalableError,
    )
    from scalable.manager.pool_cluster import PoolCluster
    from scalable.manifest import Manifest
    from scalable.model import Plan
    from scalable.providers.slurm.cluster import SlurmCluster
    from scalable.scaling import AdaptiveScaler
    from scalable.session import ScalableSession
    from scalable.storage import Storage
    from scalable.worker.checkpoints import checkpoint, current_storage
    from scalable.worker.command import CommandResult, command

__version__ = "2.0.0.dev0"

_SOURCES = {
    "AdaptiveScaler": "scalable.scaling",
    "CallFailed": "scalable.client.failures",
    "ClusterError": "scalable.errors",
    "CommandResult": "scalable.worker.command",
    "File": "scalable.cache.files",
    "KeyOptions": "scalable.cache.key",
    "Manifest": "scalable.manifest",
    "ManifestError": "scalable.errors",
    "Plan": "scalable.model",
    "PlanError": "scalable.errors",
    "PoolCluster": "scalable.manager.pool_cluster",
    "ProviderError": "scalable.errors",
    "RunError": "scalable.errors",
    "ScalableClient": "scalable.client.client",
    "ScalableError": "scalable.errors",
    "ScalableSession": "scalable.session",
    "SlurmCluster": "scalable.providers.slurm.cluster",
    "Storage": "scalable.storage",
    "Sweep": "scalable.client.failures",
    "cached": "scalable.cache.calls",
    "checkpoint": "scalable.worker.checkpoints",
    "command": "scalable.worker.command",
    "connect": "scalable.clusters.connecting",
    "current_storage": "scalable.worker.checkpoints",
    "list_clusters": "scalable.clusters.discovery",
}

#: Names for authors of providers. They can be imported from here too.
_OF_PROVIDERS = (
    "ClusterHandle",
    "CostEstimate",
    "DeploymentProvider",
    "DeploymentSpec",
    "LocalProvider",
    "ResourceRequest",
    "ScaleDecision",
    "ScalePlan",
    "SlurmProvider",
    "ValidationReport",
    "get_provider",
    "register_provider",
)

__all__ = [
    "AdaptiveScaler",
    "CallFailed",
    "ClusterError",
    "CommandResult",
    "File",
    "KeyOptions",
    "Manifest",
    "ManifestError",
    "Plan",
    "PlanError",
    "PoolCluster",
    "ProviderError",
    "RunError",
    "ScalableClient",
    "ScalableError",
    "ScalableSession",
    "SlurmCluster",
    "Storage",
    "Sweep",
    "cached",
    "checkpoint",
    "command",
    "connect",
    "current_storage",
    "list_clusters",
]


def __getattr__(name: str) -> Any:
    source = "scalable.providers" if name in _OF_PROVIDERS else _SOURCES.get(name)
    if source is None:
        raise AttributeError(f"module 'scalable' has no attribute {name!r}")
    value = getattr(importlib.import_module(source), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
