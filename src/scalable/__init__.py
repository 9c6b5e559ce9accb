"""One manifest, one plan, pools of tagged workers on one Dask scheduler, anywhere.
Public names are loaded on first use (PEP 562), so that ``import scalable`` is fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scalable.cache.decorator import cached
    from scalable.cache.file import File
    from scalable.cache.key import KeyOptions
    from scalable.client.client import ScalableClient
    from scalable.client.kept_failures import CallFailed
    from scalable.client.sweep import Sweep
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
    from scalable.model import (
        CostEstimate,
        DeploymentSpec,
        Plan,
        ResourceRequest,
        ScalePlan,
        ValidationReport,
    )
    from scalable.providers.base import ClusterHandle, DeploymentProvider
    from scalable.providers.local import LocalProvider
    from scalable.providers.registry import get_provider, register_provider
    from scalable.providers.slurm import SlurmProvider
    from scalable.providers.slurm.cluster import SlurmCluster
    from scalable.scaling import AdaptiveScaler, ScaleDecision
    from scalable.session import ScalableSession
    from scalable.storage import Storage
    from scalable.worker.checkpoints import checkpoint, current_storage
    from scalable.worker.command import CommandResult, command

__version__ = "2.0.0.dev0"

_SOURCES = {
    "AdaptiveScaler": "scalable.scaling",
    "CallFailed": "scalable.client.kept_failures",
    "ClusterError": "scalable.errors",
    "ClusterHandle": "scalable.providers.base",
    "CommandResult": "scalable.worker.command",
    "CostEstimate": "scalable.model",
    "DeploymentProvider": "scalable.providers.base",
    "DeploymentSpec": "scalable.model",
    "File": "scalable.cache.file",
    "KeyOptions": "scalable.cache.key",
    "LocalProvider": "scalable.providers.local",
    "Manifest": "scalable.manifest",
    "ManifestError": "scalable.errors",
    "Plan": "scalable.model",
    "PlanError": "scalable.errors",
    "PoolCluster": "scalable.manager.pool_cluster",
    "ProviderError": "scalable.errors",
    "ResourceRequest": "scalable.model",
    "RunError": "scalable.errors",
    "ScalableClient": "scalable.client.client",
    "ScalableError": "scalable.errors",
    "ScalableSession": "scalable.session",
    "ScaleDecision": "scalable.scaling",
    "ScalePlan": "scalable.model",
    "SlurmCluster": "scalable.providers.slurm.cluster",
    "SlurmProvider": "scalable.providers.slurm",
    "Storage": "scalable.storage",
    "Sweep": "scalable.client.sweep",
    "ValidationReport": "scalable.model",
    "cached": "scalable.cache.decorator",
    "checkpoint": "scalable.worker.checkpoints",
    "command": "scalable.worker.command",
    "connect": "scalable.clusters.connecting",
    "current_storage": "scalable.worker.checkpoints",
    "get_provider": "scalable.providers.registry",
    "list_clusters": "scalable.clusters.discovery",
    "register_provider": "scalable.providers.registry",
}

__all__ = [
    "AdaptiveScaler",
    "CallFailed",
    "ClusterError",
    "ClusterHandle",
    "CommandResult",
    "CostEstimate",
    "DeploymentProvider",
    "DeploymentSpec",
    "File",
    "KeyOptions",
    "LocalProvider",
    "Manifest",
    "ManifestError",
    "Plan",
    "PlanError",
    "PoolCluster",
    "ProviderError",
    "ResourceRequest",
    "RunError",
    "ScalableClient",
    "ScalableError",
    "ScalableSession",
    "ScaleDecision",
    "ScalePlan",
    "SlurmCluster",
    "SlurmProvider",
    "Storage",
    "Sweep",
    "ValidationReport",
    "cached",
    "checkpoint",
    "command",
    "connect",
    "current_storage",
    "get_provider",
    "list_clusters",
    "register_provider",
]


def __getattr__(name: str) -> Any:
    if name not in _SOURCES:
        raise AttributeError(f"module 'scalable' has no attribute {name!r}")
    value = getattr(importlib.import_module(_SOURCES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
