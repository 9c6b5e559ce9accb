"""AWS: tasks of Fargate and instances of EC2, their network, roles, secrets and prices."""

from typing import TYPE_CHECKING, Any

from scalable.providers.aws.traits import TRAITS

if TYPE_CHECKING:
    from scalable.providers.aws.provider import AWSBatchProvider, AWSProvider

__all__ = ["TRAITS", "AWSBatchProvider", "AWSProvider"]


def __getattr__(name: str) -> Any:
    # The traits are read without the provider.
    if name in ("PROVIDER", "AWSProvider", "AWSBatchProvider"):
        from scalable.providers.aws.provider import AWSProvider

        return AWSProvider
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
