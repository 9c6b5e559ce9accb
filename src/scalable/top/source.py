"""Sources of what the application shows, and of what it can change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from scalable.lifecycle import control, watching
from scalable.lifecycle.explaining import explain
from scalable.lifecycle.watching import Living
from scalable.spec.overview import Events, Overview
from scalable.spec.worker_overview import WorkerOverview


class Source(Protocol):
    """A cluster that is watched. Its methods may block; their errors are ScalableErrors."""

    def look(self, since: int) -> tuple[Overview, Events]:
        """Return the overview of the cluster, and its events after a number."""

    def workers(self) -> Sequence[WorkerOverview]:
        """Return the workers of the cluster."""

    def explain(self, about: str) -> list[str]:
        """Return the explanations of a tag, a call or a task name, one text each."""

    def beyond_most(self, counts: Mapping[str, int]) -> tuple[int, int] | None:
        """Return the new total and the target's limit if counts exceed it; otherwise None."""

    def scale(self, counts: Mapping[str, int]) -> None:
        """Set wanted worker counts."""

    def drain(self, worker: str) -> None:
        """Empty a worker and end it."""


class ClusterSource:
    """A running cluster, or a session in another process of the user.

    Parameters
    ----------
    name
        Name or id of the cluster, or name of its run.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def look(self, since: int) -> tuple[Overview, Events]:
        """Return the overview of the cluster, and its events after a number."""
        return watching.look(self.name, since)

    def workers(self) -> Sequence[WorkerOverview]:
        """Return the workers of the cluster, at most 1,000."""
        return watching.workers_of(self.name)

    def explain(self, about: str) -> list[str]:
        """Return the explanations of a tag, a call or a task name, one text each."""
        found = explain(self.name, about)
        return [str(each) for each in (*found.pools, *found.calls)]

    def beyond_most(self, counts: Mapping[str, int]) -> tuple[int, int] | None:
        """Return the new total and the target's limit if counts exceed it; otherwise None."""
        return control.beyond_most(self.name, counts)

    def scale(self, counts: Mapping[str, int]) -> None:
        """Set wanted worker counts."""
        control.scale(self.name, counts)

    def drain(self, worker: str) -> None:
        """Empty a worker and end it."""
        control.drain(self.name, [worker])


class Sources(Protocol):
    """Everything that can be watched."""

    def living(self) -> Living:
        """Return the clusters and sessions that live; it may block for seconds."""

    def open(self, name: str) -> Source:
        """Return a cluster by its name or id."""


class AllClusters:
    """The clusters and sessions of this user."""

    def living(self) -> Living:
        """Return the clusters and sessions that live."""
        return watching.all_that_live()

    def open(self, name: str) -> Source:
        """Return a cluster by its name or id."""
        return ClusterSource(name)
