"""Kubernetes: options and offline validation."""

from scalable.providers.kubernetes.provider import KubernetesProvider

PROVIDER = KubernetesProvider

__all__ = ["KubernetesProvider"]
