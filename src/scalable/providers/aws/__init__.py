"""AWS: options and offline validation."""

from typing import TYPE_CHECKING, Any

from scalable.providers.aws.traits import TRAITS

if TYPE_CHECKING:
    from scalable.providers.aws.provider import AWSProvider

__all__ = ["TRAITS", "AWSProvider"]


def __getattr__(name: str) -> Any:
    # The traits are read without the provider.
    if name in ("PROVIDER", "AWSProvider"):
        from scalable.providers.aws.provider import AWSProvider

        return AWSProvider
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
