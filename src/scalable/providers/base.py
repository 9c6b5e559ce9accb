"""Interface of providers: plugins that run workers on one kind of target.

Third parties register a class with the methods of :class:`DeploymentProvider`, at run time or in
the entry point group ``scalable.providers``. This module does not import Dask.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from scalable.exports import exported_lazily

if TYPE_CHECKING:
    from scalable.manager.pools import ManagerSite, Pool
    from scalable.model import (
        CostEstimate,
        DeploymentSpec,
        Diagnostic,
        ProgramState,
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
    "ProgramState",
    "RemotePlace",
    "ResourceRequest",
    "ScalePlan",
    "Traits",
    "ValidationReport",
]

__getattr__, __dir__ = exported_lazily(
    __name__,
    {
        "scalable.model": (
            "CostEstimate",
            "DeploymentSpec",
            "Diagnostic",
            "ProgramState",
            "ResourceRequest",
            "ScalePlan",
            "Traits",
            "ValidationReport",
        ),
    },
)


class OptionsModel:
    """Class attribute that imports a provider's option model on first access.

    Parameters
    ----------
    module, name
        Module, and name of the model in it.
    """

    def __init__(self, module: str, name: str) -> None:
        self._module = module
        self._name = name

    def __get__(self, instance: object, owner: type[Any] | None = None) -> Any:
        return getattr(importlib.import_module(self._module), self._name)


@runtime_checkable
class ClusterHandle(Protocol):
    """A running cluster, from its users' point of view.

    Any cluster object of ``distributed`` is a cluster handle.
    """

    @property
    def name(self) -> str:
        """Name of the cluster."""

    @property
    def scheduler_address(self) -> str:
        """Address that clients connect to."""

    @property
    def security(self) -> Any:
        """``distributed.Security`` for clients, or None."""

    def close(self) -> Any:
        """Stop the cluster. A second call has no effect."""


@runtime_checkable
class DeploymentProvider(Protocol):
    """The methods of every provider.

    A class may also have:

    - ``close(cluster)``, which stops the cluster and everything that it started, and has no effect
      on a stopped cluster (by default ``cluster.close()`` is called);
    - ``estimate_cost(spec, plan)``, which returns a CostEstimate or None;
    - ``options_model``, a pydantic model of the options that a target may have (by default any
      option is accepted);
    - ``traits``, a :class:`Traits` (by default one with the default values).
    """

    name: str

    def validate(self, spec: DeploymentSpec) -> ValidationReport:
        """Check the request without contacting the backend or changing anything."""

    def build_cluster(self, spec: DeploymentSpec) -> ClusterHandle:
        """Start a scheduler, but no workers yet if the backend allows that.

        Raises
        ------
        scalable.errors.ProviderError
            If the backend refuses the cluster. Nothing is left running.
        """

    def scale(self, cluster: ClusterHandle, plan: ScalePlan) -> None:
        """Set the pools to the plan's worker counts. Return before workers start or stop.

        The method is idempotent, since counts are absolute. Pools that are not in the plan stay as
        they are.
        """


class ClusterServices(Protocol):
    """Starts the scheduler and managers of a detached cluster on a provider's backend.

    A detached cluster outlives the process that created it. A manager is a program that starts and
    stops its workers.
    """

    def start(self, directory: Path, service: str, program: Sequence[str], log: Path) -> None:
        """Start a program. Return when the start is recorded, not when the program runs.

        Parameters
        ----------
        directory
            Directory of the cluster, named after the cluster's UUID.
        service
            ``scheduler``, or the id of a manager.
        program
            Command line of the program.
        log
            File for its output.
        """

    def state(self, cluster_id: str) -> Mapping[str, str]:
        """Return ``pending`` or ``running`` for each program that has not exited."""


class ClusterLifecycle(Protocol):
    """Optional methods of a provider for detached clusters, which outlive their creator.

    Each method may be left out:

    - without ``pools`` a target cannot be detached;
    - without ``discover`` and ``delete``, jobs and processes of clusters without a record are not
      found;
    - without ``services``, the scheduler and managers of a cluster are processes of the user's
      machine.
    """

    def pools(self, spec: DeploymentSpec, site: ManagerSite) -> list[Pool]:
        """Return the pools of one manager, without starting workers yet.

        If ``site.detached``, the workers outlive the manager's process. ``launcher.adopt()`` finds
        them by their labels: the cluster's id and their own names.

        Raises
        ------
        scalable.errors.ProviderError
            If a component's workers can never start.
        """

    def discover(self) -> Iterable[Mapping[str, Any]]:
        """Return one row for each of this user's clusters with jobs or processes on this backend.

        Clusters with another state directory are left out.

        Returns
        -------
        iterable of mapping
            ``id`` (the cluster's UUID), ``provider``, and ``what``, a description of the jobs or
            processes. The iterable is empty if this machine has no access to the backend. The
            method returns or raises within seconds.
        """

    def delete(self, cluster_id: str) -> list[str]:
        """Stop all jobs and processes of a cluster, except the calling process or job.

        Return a description of each once all have stopped, or an empty list.

        Raises
        ------
        scalable.errors.ProviderError
            If a job or process does not stop in time.
        """

    def services(self, spec: DeploymentSpec | None = None) -> ClusterServices:
        """Return an object that starts schedulers and managers.

        Without ``spec`` the object can only report the states of programs.
        """

    def places(self) -> Iterable[Mapping[str, str]]:
        """Return the sites that this user can reach from here without a manifest.

        Only for providers whose trait ``remote`` is true. Each site is described by strings that
        :meth:`remote` accepts. There are none if the user has no access.
        """

    def place_of(self, spec: DeploymentSpec) -> Mapping[str, str]:
        """Return the site that a target names. No request is sent."""

    def remote(self, place: Mapping[str, str]) -> RemotePlace:
        """Return an object for access to a site's clusters. No request is sent."""


class TunnelEnd(Protocol):
    """Local end of a tunnel."""

    async def open(self) -> int:
        """Listen on loopback, and return the port."""

    async def close(self) -> None:
        """Close all connections and stop listening."""


class RemotePlace(Protocol):
    """Access to the clusters on a site that shares no files with the user's machine.

    The site's objects are authoritative. They store each cluster's files: its record, its
    credentials, the resolved manifest. A cluster's objects belong to one root object: its deletion
    deletes all of them. Any process with the user's access to the site can use a cluster.

    Methods may be called from any thread. Each returns or raises
    :class:`scalable.errors.ProviderError` within seconds.
    """

    def clusters(self) -> Mapping[str, Mapping[str, str]]:
        """Map the ids of all clusters of this user to their files: relative paths to contents.

        Clusters of other users, and completed clusters, are left out.
        """

    def programs(self, cluster_id: str) -> Mapping[str, ProgramState]:
        """Map ``scheduler`` and each manager id to its state. Empty without a root object."""

    def address(self, cluster_id: str) -> str | None:
        """Return the scheduler's address if this process runs on the site, else None."""

    def outer_address(self, cluster_id: str) -> str | None:
        """Return the scheduler's address for workers on other sites, or None if unreachable."""

    def tunnel(self, cluster_id: str) -> TunnelEnd:
        """Return a tunnel to the scheduler. It reconnects automatically."""

    def logs(self, cluster_id: str, since: Mapping[str, str]) -> Mapping[str, tuple[str, str]]:
        """Return the new output of each program and worker, and the position after it.

        Parameters
        ----------
        cluster_id
            Id of the cluster.
        since
            Positions returned by the previous call, by program or worker.
        """

    def keep(self, cluster_id: str, seconds: float | None) -> None:
        """Set the seconds until the backend deletes the cluster, used or not. None means never."""

    def delete(self, cluster_id: str, *, wait: bool = True) -> list[str]:
        """Delete the root object, and return when all its objects are deleted.

        Return descriptions of the deleted objects. The list is empty for an unknown cluster. If
        a program of the cluster itself calls this, it does not wait.
        """
