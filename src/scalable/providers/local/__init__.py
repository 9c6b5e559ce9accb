"""The local machine: workers as threads of the user's process, or as separate processes."""

from typing import TYPE_CHECKING, Any

from scalable.providers.local.traits import TRAITS

if TYPE_CHECKING:
    from scalable.providers.local.provider import LocalProvider

__all__ = ["TRAITS", "LocalProvider"]


def __getattr__(name: str) -> Any:
    # The traits are read without the provider.
    if name in ("PROVIDER", "LocalProvider"):
        from scalable.providers.local.provider import LocalProvider

        return LocalProvider
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
