"""Outcomes of calls whose results are remembered, and their totals. One model for all readers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Self


class Kind(StrEnum):
    """Kinds of outcomes."""

    #: The result was stored: the function did not run.
    FOUND = "found"
    #: Another process computed the result meanwhile: the function did not run.
    WAITED = "waited"
    #: No result was stored: the function ran.
    MISSED = "missed"


@dataclass(frozen=True)
class RememberedOutcome:
    """The outcome of a call whose result is remembered, or of several with the same outcome.

    Attributes
    ----------
    kind
        One of :class:`Kind`.
    count
        Number of calls.
    saved_s
        Seconds that the calls that computed the found results had taken.
    reason
        Reason of a miss, as a sentence without a full stop.
    changed
        Names of the parts of the key that differ from those of the nearest earlier result.
    key, nearest
        Key of the (first) call, and that of the nearest earlier result; "" if not known.
    """

    kind: Kind
    count: int = 1
    saved_s: float = 0.0
    reason: str = ""
    changed: tuple[str, ...] = ()
    key: str = ""
    nearest: str = ""

    @property
    def is_hit(self) -> bool:
        """Whether the calls did not run."""
        return self.kind is not Kind.MISSED

    def to_message(self) -> dict[str, Any]:
        """Return the attributes that say something, as plain values."""
        told = {"kind": str(self.kind), "count": self.count, "saved_s": round(self.saved_s, 6)}
        rest = {
            "reason": self.reason,
            "key": self.key,
            "nearest": self.nearest,
            "changed": list(self.changed),
        }
        return {**told, **{name: value for name, value in rest.items() if value}}

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> Self:
        """Return what :meth:`to_message` wrote.

        Raises
        ------
        KeyError, TypeError, ValueError
            When the message is none.
        """
        count, saved_s = int(message.get("count", 1)), float(message.get("saved_s", 0.0))
        if count < 0 or not 0 <= saved_s < float("inf"):
            raise ValueError(f"{count} calls that saved {saved_s} s")
        return cls(
            Kind(message["kind"]),
            count,
            saved_s,
            str(message.get("reason", "")),
            tuple(map(str, message.get("changed", ()))),
            str(message.get("key", "")),
            str(message.get("nearest", "")),
        )


def joined(outcomes: Iterable[RememberedOutcome]) -> list[RememberedOutcome]:
    """Return outcomes with those of the same kind and reason joined, the first of each kept."""
    groups: dict[tuple[Kind, str], list[RememberedOutcome]] = {}
    for each in outcomes:
        groups.setdefault((each.kind, each.reason), []).append(each)
    return [_joined(group) if len(group) > 1 else group[0] for group in groups.values()]


def _joined(group: Sequence[RememberedOutcome]) -> RememberedOutcome:
    return replace(
        group[0],
        count=sum(each.count for each in group),
        saved_s=sum(each.saved_s for each in group),
    )


@dataclass(frozen=True)
class MissReason:
    """Misses of the calls of one task name, for one reason.

    Attributes
    ----------
    task
        Name of the task.
    reason
        The reason, as a sentence.
    count
        Number of calls.
    changed
        Names of the parts of the key that differ, in the first of the calls.
    key, nearest
        Key of the first of the calls, and of the earlier result that was nearest to it; "" if not
        known.
    """

    task: str
    reason: str
    count: int
    changed: Sequence[str] = ()
    key: str = ""
    nearest: str = ""


@dataclass(frozen=True)
class RememberedTotals:
    """Totals of the calls whose results are remembered.

    Attributes
    ----------
    found
        Number of calls that did not run, because their results were found.
    waited
        Number of these whose result another process computed meanwhile.
    saved_s
        Seconds that the calls that computed the found results had taken.
    missed
        Number of calls that ran.
    reasons
        Reasons of the misses, the most frequent first. Rare ones beyond a limit are counted
        together.
    """

    found: int = 0
    waited: int = 0
    saved_s: float = 0.0
    missed: int = 0
    reasons: tuple[MissReason, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.found or self.missed)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Return the totals whose attributes are given as plain JSON values."""
        reasons = tuple(
            MissReason(**{name: each[name] for name in MissReason.__annotations__ if name in each})
            for each in data.get("reasons", ())
        )
        counts = {name: data.get(name, 0) for name in ("found", "waited", "saved_s", "missed")}
        return cls(**counts, reasons=reasons)


#: Number of reasons that totals tell apart, and the reason under which the others are counted.
TOLD_REASONS = 50
OTHER_REASONS = "other reasons"


class RememberedTally:
    """Adds outcomes up. Its size is bounded, however many outcomes there are."""

    def __init__(self) -> None:
        self._found = self._waited = self._missed = 0
        self._saved_s = 0.0
        self._reasons: dict[tuple[str, str], MissReason] = {}

    def add(self, task: str, outcome: RememberedOutcome) -> None:
        """Add an outcome of calls of a task name."""
        if outcome.is_hit:
            self._found += outcome.count
            self._waited += outcome.count * (outcome.kind is Kind.WAITED)
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

    def totals(self) -> RememberedTotals:
        """Return the totals of all outcomes so far."""
        reasons = sorted(self._reasons.values(), key=lambda each: -each.count)
        return RememberedTotals(
            self._found, self._waited, self._saved_s, self._missed, tuple(reasons)
        )
