"""AWS provider: Fargate tasks and EC2 instances, their network, roles, secrets and prices."""

from typing import TYPE_CHECKING, Any

from scalable.providers.aws.traits import TRAITS

if TYPE_CHECKING:
    from scalable.providers.aws.provider import AWSBatchProvider, AWSProvider

__all__ = ["TRAITS", "AWSBatchProvider", "AWSProvider"]


def __getattr__(name: str) -> Any:
    # The traits are available without an import of the provider.
    if name in ("PROVIDER", "AWSProvider", "AWSBatchProvider"):
        from scalable.providers.aws.provider import AWSProvider

        return AWSProvider
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
