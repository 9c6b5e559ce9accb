"""The local machine: workers as threads of the user's process, or as processes of their own."""

from scalable.providers.local.provider import LocalProvider

PROVIDER = LocalProvider

__all__ = ["LocalProvider"]
