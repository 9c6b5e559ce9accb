"""The contract of a provider: the plug-in that knows one kind of place.

A third party implements exactly :class:`DeploymentProvider` and registers the class, at run time
with :func:`scalable.providers.registry.register_provider` or through an entry point in the group
``scalable.providers``. Nothing of the engine is imported here, so that validating and planning stay
light.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from scalable.spec import (
    CostEstimate,
    DeploymentSpec,
    Diagnostic,
    ResourceRequest,
    ScalePlan,
    ValidationReport,
)

__all__ = [
    "ClusterHandle",
    "CostEstimate",
    "DeploymentProvider",
    "DeploymentSpec",
    "Diagnostic",
    "ResourceRequest",
    "ScalePlan",
    "ValidationReport",
]


@runtime_checkable
class ClusterHandle(Protocol):
    """A running cluster as its users see it. Any ``distributed`` cluster object is one."""

    @property
    def name(self) -> str:
        """Name of the cluster."""

    @property
    def scheduler_address(self) -> str:
        """Address that clients connect to."""

    @property
    def security(self) -> Any:
        """The ``distributed.Security`` that clients need, or None."""

    def close(self) -> Any:
        """End the cluster; ending it twice is harmless."""


@runtime_checkable
class DeploymentProvider(Protocol):
    """What every provider does.

    A class may also offer ``estimate_cost(spec, plan) -> CostEstimate | None``, and an attribute
    ``options_model``, a pydantic model of the options that a target may carry; without it any
    option is accepted.
    """

    name: str

    def validate(self, spec: DeploymentSpec) -> ValidationReport:
        """Check the request offline; contact nothing and change nothing."""

    def build_cluster(self, spec: DeploymentSpec) -> ClusterHandle:
        """Start a scheduler, without workers where the place allows it.

        Raises
        ------
        scalable.errors.ProviderError
            When the place refuses; nothing is left behind then.
        """

    def scale(self, cluster: ClusterHandle, plan: ScalePlan) -> None:
        """Make the pools as large as the plan says; returns at once, workers come and go later.

        Idempotent. Counts are absolute; a tag that the plan does not name stays as it is.
        """

    def close(self, cluster: ClusterHandle) -> None:
        """End the cluster and everything that it started; already gone is fine."""
