"""Outcomes of cached tasks, and their totals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Self

from scalable.model.codec import Noun


class OutcomeKind(StrEnum):
    """Kind of a cache outcome."""

    #: The result was stored: the function did not run.
    FOUND = "found"
    #: No result was stored: the function ran.
    MISSED = "missed"


@dataclass(frozen=True)
class CacheOutcome:
    """Outcome of a task that may be cached, or of several tasks with the same outcome."""

    kind: OutcomeKind
    count: int = 1
    #: Seconds that the original computations took.
    saved_s: float = 0.0
    #: Reason of a miss, as a sentence without a full stop.
    reason: str = ""
    #: Parts of the key that differ from the nearest earlier result's key.
    changed: tuple[str, ...] = ()
    #: Key of the (first) task, and key of the nearest earlier result; "" if unknown.
    key: str = ""
    nearest: str = ""
    #: Id of the resumed run in which the result was looked up, "" for the cache.
    resumed: str = ""

    @property
    def is_hit(self) -> bool:
        return self.kind is not OutcomeKind.MISSED

    def to_message(self) -> dict[str, Any]:
        """Return the non-empty attributes as plain values."""
        told = {"kind": str(self.kind), "count": self.count, "saved_s": round(self.saved_s, 6)}
        rest = {
            "reason": self.reason,
            "key": self.key,
            "nearest": self.nearest,
            "changed": list(self.changed),
            "resumed": self.resumed,
        }
        return {**told, **{name: value for name, value in rest.items() if value}}

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> Self:
        """Decode a result of :meth:`to_message`, or raise KeyError, TypeError or ValueError."""
        count, saved_s = int(message.get("count", 1)), float(message.get("saved_s", 0.0))
        if count < 0 or not 0 <= saved_s < float("inf"):
            raise ValueError(f"{count} tasks cannot save {saved_s} s")
        return cls(
            OutcomeKind(message["kind"]),
            count,
            saved_s,
            str(message.get("reason", "")),
            tuple(map(str, message.get("changed", ()))),
            str(message.get("key", "")),
            str(message.get("nearest", "")),
            str(message.get("resumed", "")),
        )


def joined(outcomes: Iterable[CacheOutcome]) -> list[CacheOutcome]:
    """Join outcomes of the same kind and reason, keeping the details of the first."""
    groups: dict[tuple[OutcomeKind, str, str], list[CacheOutcome]] = {}
    for each in outcomes:
        groups.setdefault((each.kind, each.reason, each.resumed), []).append(each)
    return [_joined(group) if len(group) > 1 else group[0] for group in groups.values()]


def _joined(group: Sequence[CacheOutcome]) -> CacheOutcome:
    return replace(
        group[0],
        count=sum(each.count for each in group),
        saved_s=sum(each.saved_s for each in group),
    )


@dataclass(frozen=True)
class MissReason(Noun):
    """Cache misses of one task name for one reason."""

    task: str
    reason: str
    #: Number of tasks.
    count: int
    #: Parts of the key that differ, for the first task.
    changed: Sequence[str] = ()
    #: Key of the first task, and key of the nearest earlier result; "" if unknown.
    key: str = ""
    nearest: str = ""


@dataclass(frozen=True)
class CacheTotals(Noun):
    """Totals of cache hits and misses."""

    #: Number of tasks that did not run.
    found: int = 0
    #: Seconds that the original computations took.
    saved_s: float = 0.0
    #: Number of tasks that ran.
    missed: int = 0
    #: Reasons of misses, the most frequent first. Rare ones beyond a limit are summed up.
    reasons: tuple[MissReason, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.found or self.missed)


#: Number of reasons that totals distinguish, and the reason that stands for all others.
TOLD_REASONS = 50
OTHER_REASONS = "other reasons"


class CacheTally:
    """Counter that sums up any number of cache outcomes in bounded memory."""

    def __init__(self) -> None:
        self._found = self._missed = 0
        self._saved_s = 0.0
        self._reasons: dict[tuple[str, str], MissReason] = {}

    def add(self, task: str, outcome: CacheOutcome) -> None:
        if outcome.is_hit:
            self._found += outcome.count
            self._saved_s += outcome.saved_s
            return
        self._missed += outcome.count
        same = (task, outcome.reason)
        first = self._reasons.get(same)
        if first is None and len(self._reasons) >= TOLD_REASONS:
            same = ("", OTHER_REASONS)
            first = self._reasons.get(same, MissReason(*same, 0))
        if first is None:
            self._reasons[same] = MissReason(
                *same, outcome.count, outcome.changed, outcome.key, outcome.nearest
            )
        else:
            self._reasons[same] = replace(first, count=first.count + outcome.count)

    def totals(self) -> CacheTotals:
        reasons = sorted(self._reasons.values(), key=lambda each: -each.count)
        return CacheTotals(self._found, self._saved_s, self._missed, tuple(reasons))
