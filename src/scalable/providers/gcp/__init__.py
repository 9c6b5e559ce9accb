"""Google Cloud: options and offline validation."""

from scalable.providers.gcp.provider import GCPProvider

PROVIDER = GCPProvider

__all__ = ["GCPProvider"]
