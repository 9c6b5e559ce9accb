"""The interface of providers. A provider is the plug-in for one kind of place to run workers.

A third party implements exactly :class:`DeploymentProvider` and registers the class, at run time
with :func:`scalable.providers.registry.register_provider` or through an entry point in the group
``scalable.providers``. This module does not import Dask, so that validating and
planning start quickly.
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
        "scalable.spec": (
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
    """A running cluster, as its users see it.

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
        """The ``distributed.Security`` that clients need, or None."""

    def close(self) -> Any:
        """End the cluster; ending a cluster twice is harmless."""


@runtime_checkable
class DeploymentProvider(Protocol):
    """The methods of every provider.

    A class may also offer ``close(cluster)``, which ends the cluster and everything that it
    started, and does nothing if the cluster has ended (without it ``cluster.close()`` is called);
    ``estimate_cost(spec, plan) -> CostEstimate | None``; and two attributes:
    ``options_model``, a pydantic model of the options that a target may carry (without it any
    option is accepted), and ``traits``, a :class:`Traits` (without it the defaults hold).
    """

    name: str

    def validate(self, spec: DeploymentSpec) -> ValidationReport:
        """Check the request without contacting the place or changing anything."""

    def build_cluster(self, spec: DeploymentSpec) -> ClusterHandle:
        """Start a scheduler; start no workers yet if the place allows that.

        Raises
        ------
        scalable.errors.ProviderError
            When the place refuses the cluster; nothing is left running.
        """

    def scale(self, cluster: ClusterHandle, plan: ScalePlan) -> None:
        """Set the pools to the counts of the plan; return at once, before workers come or go.

        Idempotent. Counts are absolute; a tag that the plan does not name stays as it is.
        """


class ClusterServices(Protocol):
    """Starts the scheduler and managers of a detached cluster in the place of a provider.

    A detached cluster outlives the process that made it. A manager is the program that starts and
    ends its workers.
    """

    def start(self, directory: Path, service: str, program: Sequence[str], log: Path) -> None:
        """Start a program; return when the start is recorded, not when the program runs.

        Parameters
        ----------
        directory
            Directory of the cluster; its name is the cluster's UUID.
        service
            ``scheduler``, or the id of a manager.
        program
            Command line of the program.
        log
            File for its output.
        """

    def state(self, cluster_id: str) -> Mapping[str, str]:
        """Return program -> ``pending`` or ``running``, for programs that have not ended."""


class ClusterLifecycle(Protocol):
    """Optional methods of a provider, for detached clusters, which outlive their creator.

    Each method may be left out: without ``pools`` a target cannot be detached; without ``discover``
    and ``delete`` jobs and processes of clusters without a record are not found; without
    ``services`` the scheduler and managers of a cluster are processes of the user's machine.
    """

    def pools(self, spec: DeploymentSpec, site: ManagerSite) -> list[Pool]:
        """Return the pools whose workers one manager will start; start nothing yet.

        If ``site.detached``, the workers outlive the manager's process. They carry the cluster's id
        and their own names, by which ``launcher.adopt()`` finds them again.

        Raises
        ------
        scalable.errors.ProviderError
            When a component's workers can never start.
        """

    def discover(self) -> Iterable[Mapping[str, Any]]:
        """Return one row for each of this user's clusters with jobs or processes in this place.

        Only clusters of the present state directory count.

        Returns
        -------
        iterable of mapping
            ``id`` (the cluster's UUID), ``provider``, and ``what``, a description of the jobs or
            processes. Empty where this machine has no access to the place. The method returns
            or raises within seconds.
        """

    def delete(self, cluster_id: str) -> list[str]:
        """End all jobs and processes of a cluster, except the calling process or job.

        Return a description of each, once all have ended; empty if there are none.

        Raises
        ------
        scalable.errors.ProviderError
            When a job or process does not end in time.
        """

    def services(self, spec: DeploymentSpec | None = None) -> ClusterServices:
        """Return an object that starts schedulers and managers.

        Without ``spec`` the object can only report the states of programs.
        """

    def places(self) -> Iterable[Mapping[str, str]]:
        """Return the places that this user reaches from here without a manifest.

        Only for providers whose trait ``remote`` is true. Each place is described by texts that
        :meth:`remote` understands. Empty where the user has no access.
        """

    def place_of(self, spec: DeploymentSpec) -> Mapping[str, str]:
        """Return the place that a target names; ask nothing."""

    def remote(self, place: Mapping[str, str]) -> RemotePlace:
        """Return an object that finds and reaches the clusters of one place; ask nothing yet."""


class TunnelEnd(Protocol):
    """The end of a tunnel on this machine."""

    async def open(self) -> int:
        """Listen on loopback; return the port."""

    async def close(self) -> None:
        """End all connections and stop listening."""


class RemotePlace(Protocol):
    """Finds and reaches the clusters in a place that shares no files with the user's machine.

    The objects of the place are the truth: they keep the files of each cluster (its record, its
    credentials, the resolved manifest), and they belong to one root object, so that deleting the
    root ends everything. Any process with the user's access to the place can use a cluster.

    Methods may be called from any thread. Each returns or raises
    :class:`scalable.errors.ProviderError` within seconds.
    """

    def clusters(self) -> Mapping[str, Mapping[str, str]]:
        """Return cluster id -> files (relative path -> text), for all clusters of this user.

        Clusters of other users, and clusters that completed, are left out.
        """

    def programs(self, cluster_id: str) -> Mapping[str, ProgramState]:
        """Return program -> state, for ``scheduler`` and each manager; empty without the root."""

    def address(self, cluster_id: str) -> str | None:
        """Return the address of the scheduler if this process is inside the place, else None."""

    def outer_address(self, cluster_id: str) -> str | None:
        """Return the address of the scheduler for workers in other places; None without one."""

    def tunnel(self, cluster_id: str) -> TunnelEnd:
        """Return a tunnel to the scheduler; it opens again by itself when it is cut."""

    def logs(self, cluster_id: str, since: Mapping[str, str]) -> Mapping[str, tuple[str, str]]:
        """Return program or worker -> new output, and a mark to pass as ``since`` the next time.

        Parameters
        ----------
        cluster_id
            Id of the cluster.
        since
            Program or worker -> mark of the last call.
        """

    def keep(self, cluster_id: str, seconds: float | None) -> None:
        """Set the time after which the place ends the cluster, whoever has died; None for never."""

    def delete(self, cluster_id: str, *, wait: bool = True) -> list[str]:
        """Delete the root object, and return when all that it owns is gone.

        Return a description of what was ended; empty if there is no such cluster. A program of the
        cluster itself does not wait.
        """
