"""AWS: options and offline validation."""

from scalable.providers.aws.provider import AWSProvider

PROVIDER = AWSProvider

__all__ = ["AWSProvider"]
