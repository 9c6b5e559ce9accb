"""The contract of providers, the plug-ins that know one kind of place each.

A third party implements exactly :class:`DeploymentProvider` and registers the class, at run time
with :func:`scalable.providers.registry.register_provider` or through an entry point in the group
``scalable.providers``. Nothing of the engine is imported here, so that validating and planning stay
light.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from scalable.exports import exported_lazily

if TYPE_CHECKING:
    from scalable.manager.pools import Pool
    from scalable.manager.site import ManagerSite
    from scalable.spec import (
        CostEstimate,
        DeploymentSpec,
        Diagnostic,
        ResourceRequest,
        ScalePlan,
        Traits,
        ValidationReport,
    )

__all__ = [
    "ClusterHandle",
    "ClusterLifecycle",
    "ClusterServices",
    "CostEstimate",
    "DeploymentProvider",
    "DeploymentSpec",
    "Diagnostic",
    "OptionsModel",
    "ResourceRequest",
    "ScalePlan",
    "Traits",
    "ValidationReport",
]

__getattr__, __dir__ = exported_lazily(
    __name__,
    {
        "scalable.spec": (
            "CostEstimate",
            "DeploymentSpec",
            "Diagnostic",
            "ResourceRequest",
            "ScalePlan",
            "Traits",
            "ValidationReport",
        ),
    },
)


class OptionsModel:
    """Class attribute that imports a provider's option model when it is first read.

    Parameters
    ----------
    module, name
        Module of the model, and its name there.
    """

    def __init__(self, module: str, name: str) -> None:
        self._module = module
        self._name = name

    def __get__(self, instance: object, owner: type[Any] | None = None) -> Any:
        return getattr(importlib.import_module(self._module), self._name)


@runtime_checkable
class ClusterHandle(Protocol):
    """A running cluster for its users. Any ``distributed`` cluster object is a cluster handle."""

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
        """End the cluster; ending a cluster twice is harmless."""


@runtime_checkable
class DeploymentProvider(Protocol):
    """The methods of every provider.

    A class may also offer ``estimate_cost(spec, plan) -> CostEstimate | None``, and two attributes:
    ``options_model``, a pydantic model of the options that a target may carry (without it any
    option is accepted), and ``traits``, a :class:`Traits` (without it the defaults hold).
    """

    name: str

    def validate(self, spec: DeploymentSpec) -> ValidationReport:
        """Check the request offline; contact nothing and change nothing."""

    def build_cluster(self, spec: DeploymentSpec) -> ClusterHandle:
        """Start a scheduler, without workers where the place allows it.

        Raises
        ------
        scalable.errors.ProviderError
            When the place refuses; nothing is left running.
        """

    def scale(self, cluster: ClusterHandle, plan: ScalePlan) -> None:
        """Set the pools to the counts of the plan; return at once, before workers come or go.

        Idempotent. Counts are absolute; a tag that the plan does not name stays as it is.
        """

    def close(self, cluster: ClusterHandle) -> None:
        """End the cluster and everything that it started; do nothing if it has ended."""


class ClusterServices(Protocol):
    """Runner of the programs of a detached cluster in the place of a provider."""

    def start(self, directory: Path, service: str, program: Sequence[str], log: Path) -> None:
        """Start a program; return when the start is recorded, not when the program runs.

        Parameters
        ----------
        directory
            Directory of the cluster; its name is the cluster's UUID.
        service
            ``scheduler``, or the id of a manager.
        program
            Its command line.
        log
            File for its output.
        """

    def state(self, cluster_id: str) -> Mapping[str, str]:
        """Return service -> ``pending`` or ``running``, without those that have ended."""


class ClusterLifecycle(Protocol):
    """Optional methods of a provider, for clusters that outlive the process that made them.

    Each method may be left out: without ``pools`` a target cannot be detached; without ``discover``
    and ``delete`` resources without a record are not found; without ``services`` the programs of a
    cluster are processes of the machine of the user.
    """

    def pools(self, spec: DeploymentSpec, site: ManagerSite) -> list[Pool]:
        """Return the pools of one worker manager; start nothing.

        With ``site.detached`` their units outlive the manager's process, carry the cluster's id and
        their own names, and are found again by ``launcher.adopt()``.

        Raises
        ------
        scalable.errors.ProviderError
            When a component's workers can never start.
        """

    def discover(self) -> Iterable[Mapping[str, Any]]:
        """Return one row for each cluster of this user and state directory that has resources here.

        Returns
        -------
        iterable of mapping
            ``id`` (the cluster's UUID), ``provider``, and ``what``, a description of the resources.
            Empty where the place does not exist here. It returns or raises within seconds.
        """

    def delete(self, cluster_id: str) -> list[str]:
        """End all resources that carry the id of a cluster, except the calling process or job.

        Return once they have ended, with a description of each; empty if there are none.

        Raises
        ------
        scalable.errors.ProviderError
            When a resource does not end in time.
        """

    def services(self, spec: DeploymentSpec | None = None) -> ClusterServices:
        """Return the runner of schedulers and managers; without a spec it only tells states."""
