"""State of worker managers, and the interface of policies that divide workers among them. No I/O.

A worker manager is a process that starts and stops workers on one target, such as a Slurm cluster.
A tier is one manager with its terms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from scalable.scaling.capacity import Portion
from scalable.spec import Starting


@dataclass(frozen=True)
class UnitPrice:
    """Price of one worker.

    Attributes
    ----------
    per_hour
        Price of one worker for one hour.
    minimum_s
        Shortest billed time in seconds.
    granularity_s
        Length in seconds to which billed time is rounded up; 0 for exact time.
    """

    per_hour: float = 0.0
    minimum_s: float = 0.0
    granularity_s: float = 0.0


@dataclass(frozen=True)
class Tier:
    """State of one manager: the input of an allocation policy.

    Attributes
    ----------
    manager
        Id of the manager.
    priority
        Rank of the manager. Managers with lower numbers get workers first. Managers with equal
        numbers are ordered by id.
    limits
        Tag -> maximum number of workers.
    tags
        Tags of the workers that the manager can start.
    running
        Tag -> number of running workers.
    failed
        Tag -> reason, for each pool that the manager has given up.
    present
        Whether the manager accepts requests. If False, it gets no new workers and keeps its running
        workers.
    prices
        Tag -> price of one worker. A missing tag has no price: its workers count as free.
    starting
        Time and price of starting a worker that are assumed until starts have been measured.
    """

    manager: str
    priority: int = 0
    limits: Mapping[str, int] = field(default_factory=dict)
    tags: frozenset[str] = frozenset()
    running: Mapping[str, int] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)
    present: bool = True
    prices: Mapping[str, UnitPrice] = field(default_factory=dict)
    starting: Starting = field(default_factory=Starting)


@dataclass(frozen=True)
class WaitingWork:
    """Known work of one pool.

    Attributes
    ----------
    portions
        Work that is ready now or soon, in worker-seconds, the soonest first.
    rest_s
        Seconds from the moment when the first later work is ready until all later work has ended.
    outlived
        Whether the workers are kept when the known work has ended, as in a pool of constant size.
    least
        Number of workers that the pool has in any case; None if the wanted number is fixed.
    """

    portions: tuple[Portion, ...] = ()
    rest_s: float = 0.0
    outlived: bool = False
    least: int | None = None

    @property
    def total_s(self) -> float:
        """Worker-seconds of all portions."""
        return sum(portion.work_s for portion in self.portions)


class AllocationPolicy(Protocol):
    """Policy for the number of workers that are requested from each manager."""

    @property
    def weighs_work(self) -> bool:
        """Whether the policy uses the known work; otherwise nobody has to compute it."""

    @property
    def reasons(self) -> Mapping[str, Mapping[str, str]]:
        """Manager -> tag -> reason for the last result, as a sentence; empty if none are given."""

    @property
    def spared(self) -> Mapping[str, int]:
        """Tag -> number of wanted workers that the last result does not need."""

    def allot(
        self,
        wanted: Mapping[str, int],
        tiers: Sequence[Tier],
        now: float,
        work: Mapping[str, WaitingWork] | None = None,
    ) -> dict[str, dict[str, int]]:
        """Return manager -> tag -> number of workers to request from the manager.

        Parameters
        ----------
        wanted
            Tag -> total number of wanted workers.
        tiers
            States of the managers.
        now
            Current time in monotonic seconds.
        work
            Tag -> known work of the pool; a tag without an entry has unknown work.
        """


def unplaced(
    wanted: Mapping[str, int],
    shares: Mapping[str, Mapping[str, int]],
    spared: Mapping[str, int] | None = None,
) -> dict[str, int]:
    """Return tag -> number of wanted workers that no manager can be asked for, if it is not zero.

    Parameters
    ----------
    wanted
        Tag -> total number of wanted workers.
    shares
        Manager -> tag -> number of workers that are requested from it.
    spared
        Tag -> number of wanted workers that are not needed.
    """
    asked = dict(spared or {})
    for tag in wanted:
        asked[tag] = asked.get(tag, 0) + sum(share.get(tag, 0) for share in shares.values())
    return {tag: count - asked[tag] for tag, count in wanted.items() if asked[tag] < count}
