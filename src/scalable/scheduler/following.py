"""Interfaces between the controller and the follower of the load: neither imports the other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from scalable.protocol.handlers import Attachment, Change
from scalable.scheduler.demand import Demand
from scalable.spec import PoolStatus


class LoadFollower(Protocol):
    """Scaler of the pools that follow their load; the controller talks to it."""

    @property
    def pools(self) -> Mapping[str, Any]:
        """Tag -> pool that follows its load."""

    def follow(
        self,
        pools: Mapping[str, Sequence[Any]],
        *,
        maximum: int | None = None,
        expectations: Mapping[str, Sequence[Any]] | None = None,
        objective: str | None = None,
        policy: str | None = None,
    ) -> None:
        """Let the pools of a manifest follow their load."""

    def begin(self, tag: str, minimum: int = 0, maximum: int | None = None, **options: Any) -> Any:
        """Let a pool follow its load within bounds."""

    def end(self, *tags: str, why: str | None = None) -> None:
        """Let pools keep the counts that they have."""

    def connected(self, worker: Any) -> None:
        """Note that a worker has connected."""


class FollowedPools(Protocol):
    """Pools of a cluster, as a load follower sees and scales them."""

    @property
    def scheduler(self) -> Any:
        """Dask's scheduler."""

    @property
    def demand(self) -> Demand:
        """Wanted counts."""

    def pools(self) -> Mapping[str, PoolStatus]:
        """Return the status of every pool, by tag."""

    def scale(
        self, counts: Mapping[str, int], source: str = "manual", reason: str = "scale"
    ) -> Change:
        """Set wanted counts."""

    def attachments(self) -> Iterable[Attachment]:
        """Return the descriptions of the managers that are attached."""

    def leaves(self, worker: Any) -> bool:
        """Return whether a worker is being drained."""
