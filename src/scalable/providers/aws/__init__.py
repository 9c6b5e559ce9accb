"""AWS: options and offline validation."""

from typing import TYPE_CHECKING, Any

from scalable.providers.aws.traits import TRAITS

if TYPE_CHECKING:
    from scalable.providers.aws.provider import AWSBatchProvider

__all__ = ["TRAITS", "AWSBatchProvider"]


def __getattr__(name: str) -> Any:
    # The traits are read without the provider.
    if name in ("PROVIDER", "AWSBatchProvider"):
        from scalable.providers.aws.provider import AWSBatchProvider

        return AWSBatchProvider
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
