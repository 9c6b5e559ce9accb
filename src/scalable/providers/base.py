"""The contract of a provider: the plug-in that knows one kind of place.

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

from scalable.spec import (
    CostEstimate,
    DeploymentSpec,
    Diagnostic,
    ResourceRequest,
    ScalePlan,
    Traits,
    ValidationReport,
)

if TYPE_CHECKING:
    from scalable.manager.pools import Pool
    from scalable.manager.site import ManagerSite

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
            When the place refuses; nothing is left behind then.
        """

    def scale(self, cluster: ClusterHandle, plan: ScalePlan) -> None:
        """Make the pools as large as the plan says; returns at once, workers come and go later.

        Idempotent. Counts are absolute; a tag that the plan does not name stays as it is.
        """

    def close(self, cluster: ClusterHandle) -> None:
        """End the cluster and everything that it started; already gone is fine."""


class ClusterServices(Protocol):
    """Runs the programs of a detached cluster in the place of a provider."""

    def start(self, directory: Path, service: str, program: Sequence[str], log: Path) -> None:
        """Start a program; returns when that is recorded, not when it runs.

        Parameters
        ----------
        directory
            Of the cluster; its name is the cluster's UUID.
        service
            ``scheduler``, or the id of a manager.
        program
            Its command line.
        log
            File for its output.
        """

    def state(self, cluster_id: str) -> Mapping[str, str]:
        """Service -> ``pending`` or ``running``; those that are gone are left out."""


class ClusterLifecycle(Protocol):
    """What a provider may offer beside, so that clusters outlive the process that made them.

    Each method may be left out: without ``pools`` a target cannot be detached; without ``discover``
    and ``delete`` nothing is found that has no record; without ``services`` the programs of a
    cluster are processes of the machine where they were asked for.
    """

    def pools(self, spec: DeploymentSpec, site: ManagerSite) -> list[Pool]:
        """The pools of one worker manager; nothing is started.

        With ``site.detached`` their units outlive the manager's process, carry the cluster's id and
        their own names, and are found again by ``launcher.adopt()``.

        Raises
        ------
        scalable.errors.ProviderError
            When no worker of a component could ever start.
        """

    def discover(self) -> Iterable[Mapping[str, Any]]:
        """One row for each cluster of this user and state directory of which something is there.

        Returns
        -------
        iterable of mapping
            ``id`` (the cluster's UUID), ``provider``, and ``what`` was found, for people. Empty
            where the place does not exist here. It answers, or raises, within seconds.
        """

    def delete(self, cluster_id: str) -> list[str]:
        """End whatever carries the id of a cluster, except for the process or job that asks.

        Returns when it is gone, with what was ended; nothing is fine, and so is asking again.

        Raises
        ------
        scalable.errors.ProviderError
            When something does not end in time.
        """

    def services(self, spec: DeploymentSpec | None = None) -> ClusterServices:
        """What runs schedulers and managers there; None for the request only to ask for states."""
