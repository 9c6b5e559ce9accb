"""Base class of cloud providers, with everything except the cloud itself."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar

from scalable.model import ClusterRecord, DeploymentSpec, ScalePlan, Traits
from scalable.model.codec import SpecFormatError, decode_spec

if TYPE_CHECKING:
    from scalable.manager.pools import ManagerSite, Pool
    from scalable.providers.remote.cloud import Cloud, MachineSide
    from scalable.providers.remote.cloud_place import CloudPlace
    from scalable.providers.remote.cloud_services import CloudServices
    from scalable.providers.remote.session_cluster import SessionCluster
    from scalable.records import ClusterDirectory

logger = logging.getLogger("scalable.providers.remote")


class CloudProvider(ABC):
    """Provider with scheduler and workers on machines of a cloud.

    A session's manager runs in the user's process, or with ``manager: there`` on a machine. A
    detached cluster's manager runs on a machine too, or with ``manager: here`` on the user's
    machine.

    Attributes
    ----------
    name, traits
        Name of the provider, and its traits.
    ours
        Keys of a site that are meaningful only on the user's machine.
    """

    name: ClassVar[str]
    traits: ClassVar[Traits]
    ours: ClassVar[frozenset[str]] = frozenset()

    @abstractmethod
    def cloud(self, place: Mapping[str, str], spec: DeploymentSpec | None = None) -> Cloud:
        """Return a connection to a site, without a request.

        Without ``spec``, the connection cannot start machines. An empty ``place`` is the site of
        ``spec``.
        """

    @abstractmethod
    def machine_side(self) -> MachineSide:
        """Return the cloud's interface for this process, which runs on one of its machines."""

    @abstractmethod
    def place_of(self, spec: DeploymentSpec) -> dict[str, str]:
        """Return a target's site, without a request."""

    @abstractmethod
    def places(self) -> list[dict[str, str]]:
        """Return the sites that the user can reach without a manifest."""

    # Sessions -------------------------------------------------------------------------------------

    def build_cluster(self, spec: DeploymentSpec) -> SessionCluster:
        """Start a scheduler with empty pools on a machine, and connect to it.

        Raises
        ------
        ProviderError
            If the cloud refuses, or the scheduler does not start in time. Nothing is left running.
        """
        from scalable.providers.remote.machine_site import MachineSite
        from scalable.providers.remote.session_cluster import SessionCluster
        from scalable.records.directory import remember

        place = self.place_of(spec)
        remember(self.name, place)
        cloud, inner = self.cloud(place, spec), self._inner_place(place)
        return SessionCluster(
            spec, lambda its_id: MachineSite(spec, cloud, its_id, inner), self.traits
        )

    def scale(self, cluster: Any, plan: ScalePlan) -> None:
        """Set pools to the plan's numbers of workers.

        Machines start and stop in the background.
        """
        cluster.scale_to_plan(dict(plan.workers_by_tag))

    def close(self, cluster: Any) -> None:
        """Stop all machines of the cluster, and delete its other resources."""
        if cluster is not None:
            cluster.close()

    # Detached clusters ----------------------------------------------------------------------------

    def remote(self, place: Mapping[str, str]) -> CloudPlace:
        """Return an object for access to the user's clusters in a site."""
        from scalable.providers.remote.cloud_place import CloudPlace

        return CloudPlace(lambda: self.cloud(place))

    def services(self, spec: DeploymentSpec | None = None) -> CloudServices:
        """Return an object that starts schedulers and managers on machines."""
        from scalable.providers.remote.cloud_services import CloudServices

        return CloudServices(spec, self.cloud, self._inner_place)

    def _inner_place(self, place: Mapping[str, str]) -> dict[str, str]:
        return {key: text for key, text in place.items() if key not in self.ours}

    def pools(self, spec: DeploymentSpec, site: ManagerSite) -> list[Pool]:
        """Return the pools of machines that a manager starts."""
        from scalable.providers.remote.cloud_services import managed_pools

        def connect(place: Mapping[str, str], its: DeploymentSpec | None) -> Cloud:
            return self.cloud(place or self.place_of(spec), its)

        return managed_pools(spec, site, connect)

    def discover(self) -> list[dict[str, Any]]:
        """Return a row for each cluster without a record that has resources in the cloud."""
        found: list[dict[str, Any]] = []
        for place in self.places():
            from scalable.providers.remote.cloud_place import remains

            left = remains(lambda place=place: self.cloud(place))  # type: ignore[misc]
            found += [{"id": i, "provider": self.name, "what": what} for i, what in left.items()]
        return found

    def delete(self, cluster_id: str) -> list[str]:
        """Stop the machines of a cluster, and delete its other resources.

        The record of a detached cluster contains the site. Without a record, all sites that the
        user can reach are searched.
        """
        from scalable.providers.remote.cloud_place import is_session
        from scalable.records import ClusterDirectory

        directory = ClusterDirectory(ClusterDirectory.parent() / cluster_id)
        record = None
        if not is_session(cluster_id):
            with suppress(FileNotFoundError):
                record = directory.record()
        if record is None:
            parts = [self.remote(place).delete(cluster_id) for place in self.places()]
            return [text for part in parts for text in part]
        own = record.remote and record.provider == self.name
        places = [dict(record.place)] if own else self._places_of_managers(directory, record)
        return [text for place in places for text in self.remote(place).delete(cluster_id)]

    def _places_of_managers(
        self, directory: ClusterDirectory, record: ClusterRecord
    ) -> list[dict[str, str]]:
        """Return the sites where managers start machines for a cluster of another backend."""
        found: list[dict[str, str]] = []
        for manager, its in record.managers.items():
            text = directory.spec_text(manager) if its["provider"] == self.name else None
            try:
                place = None if text is None else self.place_of(decode_spec(text))
            except SpecFormatError as error:
                logger.warning("could not read the site of manager %s: %s", manager, error)
                continue
            if place is not None and place not in found:
                found.append(place)
        return found
