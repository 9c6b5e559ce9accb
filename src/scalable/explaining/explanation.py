"""`Explanation`: the state of a call or a pool, its reason in one sentence, and the way out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Self


class State(StrEnum):
    """State of a call or of a pool; ``ready`` is a pool for which no call waits."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    UNKNOWN = "unknown"
    READY = "ready"


class Reason(StrEnum):
    """Reason for a state, as a word for programs."""

    # Of pools, and of calls that wait for a worker
    NO_POOL = "no-pool"
    NO_MANAGER = "no-manager"
    MANAGER_STARTS = "manager-starts"
    MANAGER_LOST = "manager-lost"
    MANAGER_FAILS = "manager-fails"
    BUDGET = "budget"
    EMPTY = "empty"
    ADAPTIVE = "adaptive"
    LAUNCHING = "launching"
    PLACE = "place"
    WALLTIME = "walltime"
    LEAVING = "leaving"
    PAUSED = "paused"
    ENDING = "ending"
    READY = "ready"
    # Of calls that wait
    DEPENDENCIES = "dependencies"
    RESOURCES = "resources"
    SLOTS = "slots"
    RESTRICTION = "restriction"
    FULL = "full"
    PRIORITY = "priority"
    BACKOFF = "backoff"
    HELD_SLOT = "held-slot"
    BACKLOG = "backlog"
    ARGUMENTS = "arguments"
    # Of other calls
    RUNNING = "running"
    NESTED = "nested"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Explanation:
    """The state of a call, of several similar calls, or of a pool, and the reason for it.

    Attributes
    ----------
    about
        Key of the call, words for several calls, or tag of the pool.
    state, reason
        State, and its reason as a word.
    sentence
        State and reason in one sentence, without a full stop.
    advice
        Way to change it; empty if there is nothing to do.
    details
        Facts behind the sentence, as plain JSON values. Times are in seconds.
    """

    about: str
    state: State
    reason: Reason
    sentence: str
    advice: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.sentence}; {self.advice}" if self.advice else self.sentence

    def __repr__(self) -> str:
        return f"<Explanation: {self}>"

    def to_dict(self) -> dict[str, Any]:
        """Return the attributes as plain JSON values."""
        values = asdict(self)
        return {**values, "state": str(self.state), "reason": str(self.reason)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Return the explanation that :meth:`to_dict` wrote."""
        state, reason = State(data["state"]), Reason(data["reason"])
        about, sentence, advice = (str(data[name]) for name in ("about", "sentence", "advice"))
        return cls(about, state, reason, sentence, advice, dict(data["details"]))


@dataclass(frozen=True)
class Explanations:
    """Explanations of pools, and of the calls that wait, grouped by reason; the oldest are first.

    Attributes
    ----------
    pools, calls
        One explanation for each pool, and for each group of calls.
    """

    pools: tuple[Explanation, ...] = ()
    calls: tuple[Explanation, ...] = ()

    def __str__(self) -> str:
        return "\n".join(map(str, (*self.pools, *self.calls)))

    def __repr__(self) -> str:
        return f"<Explanations: {self}>"

    def to_dict(self) -> dict[str, Any]:
        """Return the attributes as plain JSON values."""
        return {
            "pools": [pool.to_dict() for pool in self.pools],
            "calls": [call.to_dict() for call in self.calls],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Return the explanations that :meth:`to_dict` wrote."""
        return cls(
            tuple(map(Explanation.from_dict, data["pools"])),
            tuple(map(Explanation.from_dict, data["calls"])),
        )
