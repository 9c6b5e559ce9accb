"""Google Cloud provider: Compute Engine instances, their network, secrets and prices."""

from typing import TYPE_CHECKING, Any

from scalable.providers.gcp.traits import TRAITS

if TYPE_CHECKING:
    from scalable.providers.gcp.provider import GCPProvider

__all__ = ["TRAITS", "GCPProvider"]


def __getattr__(name: str) -> Any:
    # The traits are available without an import of the provider.
    if name in ("PROVIDER", "GCPProvider"):
        from scalable.providers.gcp.provider import GCPProvider

        return GCPProvider
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
