"""Kubernetes provider: scheduler, managers and workers in pods, or through the Dask operator."""

from typing import TYPE_CHECKING, Any

from scalable.providers.kubernetes.traits import TRAITS

if TYPE_CHECKING:
    from scalable.providers.kubernetes.provider import KubernetesProvider

__all__ = ["TRAITS", "KubernetesProvider"]


def __getattr__(name: str) -> Any:
    # The traits are available without an import of the provider.
    if name in ("PROVIDER", "KubernetesProvider"):
        from scalable.providers.kubernetes.provider import KubernetesProvider

        return KubernetesProvider
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
