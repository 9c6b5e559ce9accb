"""Kubernetes: a scheduler and workers in pods, for as long as the session of their creator.

Not in here: detached clusters, and clusters through the Dask Kubernetes operator.
"""

from typing import TYPE_CHECKING, Any

from scalable.providers.kubernetes.traits import TRAITS

if TYPE_CHECKING:
    from scalable.providers.kubernetes.provider import KubernetesProvider

__all__ = ["TRAITS", "KubernetesProvider"]


def __getattr__(name: str) -> Any:
    # The traits are read without the provider.
    if name in ("PROVIDER", "KubernetesProvider"):
        from scalable.providers.kubernetes.provider import KubernetesProvider

        return KubernetesProvider
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
