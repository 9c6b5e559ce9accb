"""Interfaces between the controller and adaptive scaling, so that neither imports the other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from scalable.model import PoolStatus
from scalable.protocol.handlers import Change
from scalable.protocol.pools import Attachment
from scalable.scheduler.demand import Demand


class LoadFollower(Protocol):
    """Adaptive scaling as the controller uses it. See :class:`~.adaptation.Adaptation`."""

    @property
    def pools(self) -> Mapping[str, Any]:
        """Adaptive pools by tag."""

    def follow(
        self,
        pools: Mapping[str, Sequence[Any]],
        *,
        maximum: int | None = None,
        expectations: Mapping[str, Sequence[Any]] | None = None,
        objective: str | None = None,
        policy: str | None = None,
    ) -> None:
        """Make the pools of a manifest adaptive."""

    def begin(self, tag: str, minimum: int = 0, maximum: int | None = None, **options: Any) -> Any:
        """Make a pool adaptive within bounds of its worker count."""

    def end(self, *tags: str, why: str | None = None) -> None:
        """Make pools no longer adaptive, keeping their counts."""

    def connected(self, worker: Any) -> None:
        """Record a connected worker, to measure how long workers take to start."""


class FollowedPools(Protocol):
    """Pools of a cluster as adaptive scaling reads and scales them, usually a controller."""

    @property
    def scheduler(self) -> Any:
        """Dask's scheduler."""

    @property
    def demand(self) -> Demand:
        """Desired worker counts of the cluster."""

    def pools(self) -> Mapping[str, PoolStatus]:
        """Return the status of every pool by tag."""

    def scale(
        self, counts: Mapping[str, int], source: str = "manual", reason: str = "scale"
    ) -> Change:
        """Set the desired counts of some pools, and return the counts before and after."""

    def attachments(self) -> Iterable[Attachment]:
        """Return the attachment of each known manager."""

    def leaves(self, worker: Any) -> bool:
        """Return whether a worker is being drained."""
