"""Names for authors of providers: the interface, its contracts, the registry, the built-in classes.

All names are loaded on first use. The folder of a built-in provider has its class. Providers
validate offline, and import Dask only when they build or scale a cluster.
"""

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalable.exports import exported_lazily

if TYPE_CHECKING:
    from scalable.model import (
        CostEstimate,
        DeploymentSpec,
        Diagnostic,
        ProgramState,
        ResourceRequest,
        ScalePlan,
        Traits,
        ValidationReport,
    )
    from scalable.providers.base import (
        ClusterHandle,
        ClusterLifecycle,
        ClusterServices,
        DeploymentProvider,
        OptionsModel,
        RemotePlace,
    )
    from scalable.providers.registry import get_provider, register_provider
    from scalable.scaling import ScaleDecision

__all__ = [
    "ClusterHandle",
    "ClusterLifecycle",
    "ClusterServices",
    "CostEstimate",
    "DeploymentProvider",
    "DeploymentSpec",
    "Diagnostic",
    "OptionsModel",
    "ProgramState",
    "RemotePlace",
    "ResourceRequest",
    "ScaleDecision",
    "ScalePlan",
    "Traits",
    "ValidationReport",
    "get_provider",
    "register_provider",
]

# A later module takes precedence.
_load, _names = exported_lazily(
    __name__,
    {
        "scalable.providers.base": tuple(__all__),
        "scalable.providers.registry": ("get_provider", "register_provider"),
        "scalable.scaling": ("ScaleDecision",),
    },
)


def _classes() -> dict[str, str]:
    """Map the class name of each built-in provider to the name of its folder."""
    folders = sorted(file.parent.name for file in Path(__file__).parent.glob("*/provider.py"))
    exported = {f: importlib.import_module(f"{__name__}.{f}").__all__ for f in folders}
    return {c: f for f, names in exported.items() for c in names if c.endswith("Provider")}


def __getattr__(name: str) -> Any:
    is_class = name.endswith("Provider") and name not in __all__
    folder = _classes().get(name) if is_class else None
    if folder is None:
        return _load(name)
    return getattr(importlib.import_module(f"{__name__}.{folder}"), name)


def __dir__() -> list[str]:
    return sorted({*_names(), *_classes()})
