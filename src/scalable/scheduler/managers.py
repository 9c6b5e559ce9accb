"""The worker managers that feed one cluster: who is attached, what each offers and reports."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from scalable.protocol.handlers import AttachAnswer, Attachment
from scalable.protocol.matching import Shape, difference
from scalable.scaling.waterfall import Tier
from scalable.spec import PoolStatus

#: A manager that was not heard of for so long is lost; another process may take its place.
LEASE_S = 30.0
#: A worker whose manager does not know it gets so long: it may just have been adopted.
UNKNOWN_GRACE_S = 10.0


@dataclass
class Manager:
    """A manager as the scheduler's side knows it.

    Attributes
    ----------
    attachment
        What it said of itself.
    report
        Tag -> counts, as of its last heartbeat.
    workers
        Names of the workers that it knows.
    last_seen
        Monotonic seconds.
    leaving
        Whether it takes nothing new and gives back what it has.
    """

    attachment: Attachment
    last_seen: float
    report: Mapping[str, PoolStatus] = field(default_factory=dict)
    workers: frozenset[str] = frozenset()
    leaving: bool = False

    def state(self, now: float) -> str:
        """``attached``, ``leaving`` or ``lost``."""
        if now - self.last_seen > LEASE_S:
            return "lost"
        return "leaving" if self.leaving else "attached"


class Managers:
    """The managers of one cluster. Pure: it is told what time it is."""

    def __init__(self) -> None:
        self._managers: dict[str, Manager] = {}
        self._unknown_since: dict[str, float] = {}

    def __iter__(self) -> Iterator[Manager]:
        return iter(list(self._managers.values()))

    def __contains__(self, manager: str) -> bool:
        return manager in self._managers

    def attach(
        self, attachment: Attachment, now: float, instead_of: str | None = None
    ) -> AttachAnswer:
        """Attach a manager, unless another process has its id or its pools have other shapes.

        Parameters
        ----------
        attachment
            What it says of itself.
        now
            Monotonic seconds.
        instead_of
            Nonce of a process that had the same id and has ended.
        """
        before = self._managers.get(attachment.manager)
        if before is not None and before.attachment.nonce not in (instead_of, attachment.nonce):
            silent_s = now - before.last_seen
            if silent_s <= LEASE_S:
                holder = {
                    "nonce": before.attachment.nonce,
                    "identity": dict(before.attachment.identity),
                    "silent_s": silent_s,
                }
                taken = f"a manager {attachment.manager!r} is attached already"
                return {"accepted": False, "reason": taken, "holder": holder}
        reason = self._other_shape(attachment)
        if reason is not None:
            return {"accepted": False, "reason": reason, "holder": None}
        report = {} if before is None else before.report
        workers = frozenset[str]() if before is None else before.workers
        self._managers[attachment.manager] = Manager(attachment, now, report, workers)
        return {"accepted": True, "reason": None, "holder": None}

    def _other_shape(self, attachment: Attachment) -> str | None:
        """A tag promises what its workers are like: those of all managers must agree."""
        for manager in self._managers.values():
            other = manager.attachment
            if other.manager == attachment.manager:
                continue
            for tag in attachment.pools.keys() & other.pools.keys():
                words = difference(
                    Shape.from_pool(other.pools[tag]), Shape.from_pool(attachment.pools[tag])
                )
                if words is not None:
                    return (
                        f"component {tag!r} has another shape here than manager "
                        f"{other.manager!r} gives it: {words}"
                    )
        return None

    def offer(self, manager: str, tag: str, pool: Mapping[str, Any]) -> None:
        """A manager provides one more pool."""
        offered: dict[str, Mapping[str, Any]] = self._managers[manager].attachment.pools  # type: ignore[assignment]
        offered[tag] = pool

    def beat(
        self,
        manager: str,
        nonce: str,
        report: Mapping[str, PoolStatus],
        workers: Iterable[str],
        now: float,
    ) -> bool:
        """Take a heartbeat; False where another process bears the id, or none."""
        known = self._managers.get(manager)
        if known is None or known.attachment.nonce != nonce:
            return False
        known.report, known.workers, known.last_seen = report, frozenset(workers), now
        return True

    def leave(self, manager: str, nonce: str, *, gone: bool) -> bool:
        """Take note that a manager is leaving, or has left; return whether it was attached."""
        known = self._managers.get(manager)
        if known is None or known.attachment.nonce != nonce:
            return False
        if gone:
            del self._managers[manager]
        else:
            known.leaving = True
        return True

    def pools(self) -> dict[str, PoolStatus]:
        """Return tag -> status, summed over the managers."""
        merged: dict[str, PoolStatus] = {}
        for manager in self._managers.values():
            offered = {
                tag: PoolStatus(slots=shape.get("slots", 1))
                for tag, shape in manager.attachment.pools.items()
            }
            for tag, pool in {**offered, **manager.report}.items():
                merged[tag] = merged[tag] + pool if tag in merged else pool
        return merged

    def tiers(self, running: Mapping[str, Mapping[str, int]], now: float) -> list[Tier]:
        """What the allocation policy has to know of each manager.

        Parameters
        ----------
        running
            Manager -> tag -> workers of it that are connected.
        now
            Monotonic seconds.
        """
        return [
            Tier(
                manager=name,
                priority=manager.attachment.priority,
                limits=manager.attachment.limits,
                tags=frozenset(manager.attachment.pools),
                running=running.get(name, {}),
                failed={t: r.reason for t, r in manager.report.items() if r.reason},
                present=manager.state(now) == "attached",
            )
            for name, manager in self._managers.items()
        ]

    def strangers(self, claims: Mapping[str, str], now: float) -> list[str]:
        """Workers that say they belong to a manager which is there, and does not know them.

        Parameters
        ----------
        claims
            Worker name -> id of the manager that it names.
        now
            Monotonic seconds.
        """
        unknown = set()
        for worker, name in claims.items():
            manager = self._managers.get(name)
            if manager is None or (manager.state(now) != "lost" and worker not in manager.workers):
                unknown.add(worker)
        self._unknown_since = {w: self._unknown_since.get(w, now) for w in unknown}
        return [w for w, since in self._unknown_since.items() if now - since > UNKNOWN_GRACE_S]

    def silent(self, grace_s: float, now: float) -> set[str]:
        """Ids of managers that were not heard of for longer than the grace."""
        return {n for n, m in self._managers.items() if now - m.last_seen > grace_s}
