"""Sources of the application's data, and its actions on clusters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from scalable.clusters import control, discovery
from scalable.clusters.control import explain
from scalable.clusters.discovery import RunningClusters
from scalable.model.overview import Events, Overview, WorkerOverview


class WatchedCluster(Protocol):
    """A watched cluster. Its methods may block, and raise only ScalableErrors."""

    def look(self, since: int) -> tuple[Overview, Events]:
        """Return the overview of the cluster, and its events after number ``since``."""

    def workers(self) -> Sequence[WorkerOverview]:
        """Return the workers of the cluster."""

    def explain(self, about: str) -> list[str]:
        """Return the explanations of a tag, a task's key or a task name as strings."""

    def beyond_most(self, counts: Mapping[str, int]) -> tuple[int, str] | None:
        """Return the new total and the target's limit if counts exceed it, otherwise None."""

    def scale(self, counts: Mapping[str, int]) -> None:
        """Set desired worker counts."""

    def drain(self, worker: str) -> None:
        """Drain and stop a worker."""


class ClusterSource:
    """A cluster, or a session in another process of the user, given by name, id or run."""

    def __init__(self, name: str) -> None:
        self.name = name

    def look(self, since: int) -> tuple[Overview, Events]:
        return discovery.look(self.name, since)

    def workers(self) -> Sequence[WorkerOverview]:
        """Return the workers of the cluster, at most 1,000."""
        return discovery.workers_of(self.name)

    def explain(self, about: str) -> list[str]:
        return [str(each) for each in explain(self.name, about)]

    def beyond_most(self, counts: Mapping[str, int]) -> tuple[int, str] | None:
        return control.beyond_most(self.name, counts)

    def scale(self, counts: Mapping[str, int]) -> None:
        control.scale(self.name, counts)

    def drain(self, worker: str) -> None:
        control.drain(self.name, [worker])


class Sources(Protocol):
    """Clusters and sessions that can be watched."""

    def living(self) -> RunningClusters:
        """Return the running clusters and sessions. May block for seconds."""

    def open(self, name: str) -> WatchedCluster:
        """Return a cluster by its name or id."""


class AllClusters:
    """Clusters and sessions of this user."""

    def living(self) -> RunningClusters:
        return discovery.running_clusters()

    def open(self, name: str) -> WatchedCluster:
        return ClusterSource(name)
