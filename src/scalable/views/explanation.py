"""`Explanation`: the state of a task or a pool, its reason in one sentence, and a hint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Self


class State(StrEnum):
    """State of a task or of a pool. ``ready`` means that no task waits for the pool."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    UNKNOWN = "unknown"
    READY = "ready"


class Reason(StrEnum):
    """Machine-readable reason for a state."""

    # Of pools, and of tasks that wait for a worker
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
    # Of tasks that wait
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
    # Of other tasks
    RUNNING = "running"
    NESTED = "nested"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Explanation:
    """State of a task, of several similar tasks, or of a pool, with the reason."""

    #: Key of the task, words for several tasks, or tag of the pool.
    about: str
    state: State
    reason: Reason
    #: State and reason in one sentence, without a full stop.
    sentence: str
    #: Hint how to change the state; empty if there is nothing to do.
    advice: str = ""
    #: Facts behind the sentence, as plain JSON values. Times are in seconds.
    details: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.sentence}; {self.advice}" if self.advice else self.sentence

    def __repr__(self) -> str:
        return f"<Explanation: {self}>"

    def to_dict(self) -> dict[str, Any]:
        values = asdict(self)
        return {**values, "state": str(self.state), "reason": str(self.reason)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        state, reason = State(data["state"]), Reason(data["reason"])
        about, sentence, advice = (str(data[name]) for name in ("about", "sentence", "advice"))
        return cls(about, state, reason, sentence, advice, dict(data["details"]))


@dataclass(frozen=True)
class Explanations:
    """Explanations of pools, and of waiting tasks grouped by reason, the oldest first."""

    pools: tuple[Explanation, ...] = ()
    calls: tuple[Explanation, ...] = ()

    def __str__(self) -> str:
        return "\n".join(map(str, (*self.pools, *self.calls)))

    def __repr__(self) -> str:
        return f"<Explanations: {self}>"

    def to_dict(self) -> dict[str, Any]:
        return {
            "pools": [pool.to_dict() for pool in self.pools],
            "calls": [call.to_dict() for call in self.calls],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        return cls(
            tuple(map(Explanation.from_dict, data["pools"])),
            tuple(map(Explanation.from_dict, data["calls"])),
        )
