"""Overview of a cluster: one answer to "how is it?" that every reader shows.

The scheduler makes overviews; the live page, ``scalable top``, notebooks and metrics show them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

from scalable.spec.call_view import RunningCall
from scalable.spec.clusters import PoolStatus
from scalable.spec.remembered import RememberedTotals

_T = TypeVar("_T")

#: States of calls, in the order in which they are shown.
CALL_STATES = ("running", "waiting", "done", "failed", "cancelled", "found")


@dataclass(frozen=True)
class CallCounts:
    """Numbers of calls by state.

    Attributes
    ----------
    running, waiting
        Calls that run, and calls that wait for anything: other calls, a worker, or a slot.
    done, failed, cancelled
        Calls that ended with a result, with an error, and before their end.
    found
        Calls that did not run, because their results were remembered.
    """

    running: int = 0
    waiting: int = 0
    done: int = 0
    failed: int = 0
    cancelled: int = 0
    found: int = 0

    @property
    def total(self) -> int:
        """Number of all calls."""
        return sum(getattr(self, state) for state in CALL_STATES)

    def __add__(self, other: CallCounts) -> CallCounts:
        return CallCounts(*(getattr(self, s) + getattr(other, s) for s in CALL_STATES))


@dataclass(frozen=True)
class TaskOverview:
    """The calls of one task name.

    Attributes
    ----------
    name, tag
        Name of the task, and tag of its pool; None for calls without a tag.
    counts
        Numbers of calls by state.
    mean_s
        Mean running time of the calls that ended, in seconds; None before the first has ended.
    names
        Number of task names that are summed up here; more than 1 if there are too many names.
    measured, run_s
        Number of calls whose running time was measured, and the sum of these times in seconds.
    queued, queued_s
        Number of ended calls whose queue time is known, and the sum of these times in seconds. The
        queue time of a call begins when it waits for a worker only, and ends when it runs or
        receives its input; calls of executors count the time of their bundle.
    mean_queued_s
        Mean queue time of the ended calls, in seconds; None if none is known.
    """

    name: str
    tag: str | None
    counts: CallCounts
    mean_s: float | None = None
    names: int = 1
    measured: int = 0
    run_s: float = 0.0
    queued: int = 0
    queued_s: float = 0.0
    mean_queued_s: float | None = None

    def __add__(self, other: TaskOverview) -> TaskOverview:
        """Return this row with the calls of another row added."""
        measured, run_s = self.measured + other.measured, self.run_s + other.run_s
        queued, queued_s = self.queued + other.queued, self.queued_s + other.queued_s
        return TaskOverview(
            self.name,
            self.tag,
            self.counts + other.counts,
            run_s / measured if measured else None,
            self.names + other.names,
            measured,
            run_s,
            queued,
            queued_s,
            queued_s / queued if queued else None,
        )


@dataclass(frozen=True)
class PoolOverview:
    """One pool at one moment.

    Attributes
    ----------
    status
        Worker counts and reasons of the pool.
    busy, idle
        Connected workers that have calls, and that have none.
    used_slots, slots
        Slots that running calls take, and slots of the connected workers.
    waiting
        Calls that wait for the pool.
    adaptive
        Minimum and maximum of a pool that follows its load (maximum None for no limit); None for a
        pool with a fixed count.
    cost
        Costs of the pool, as in a cluster's status; None if nothing has a price.
    leaving
        Reason -> number of connected workers that take no more calls for it.
    decided
        The last change of the wanted count, as a row of ``scaling.jsonl``; None if there was none.
    """

    status: PoolStatus
    busy: int = 0
    idle: int = 0
    used_slots: int = 0
    slots: int = 0
    waiting: int = 0
    adaptive: tuple[int, int | None] | None = None
    cost: Mapping[str, Any] | None = None
    leaving: Mapping[str, int] = field(default_factory=dict)
    decided: Mapping[str, Any] | None = None

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Return the pool whose attributes are given as plain JSON values."""
        adaptive = data.get("adaptive")
        return _made(
            cls,
            data,
            status=PoolStatus.from_dict(data.get("status", {})),
            adaptive=None if adaptive is None else tuple(adaptive),
        )


@dataclass(frozen=True)
class PredictedEnd:
    """Predicted end of all calls that are known now.

    Attributes
    ----------
    at, low, high
        Predicted time, and the bounds of an interval of 80 %, in seconds since 1970; None if the
        end cannot be predicted.
    reason
        Reason for the prediction, or why there is none.
    """

    at: float | None = None
    low: float | None = None
    high: float | None = None
    reason: str = ""


@dataclass(frozen=True)
class Overview:
    """A cluster at one moment.

    Attributes
    ----------
    at
        Time of the overview, in seconds since 1970.
    seq
        Number of the last event before it. Readers ask for the events after this number.
    cluster
        ``id``, ``name``, ``project``, ``target``, ``provider``, ``state``, ``reason``,
        ``started_at``, ``ends_at``, ``idle_ends_at`` and ``run`` (directory of its record).
    pools
        Tag -> overview of the pool.
    tasks
        Overview of each task name, the ones with unfinished calls first.
    running
        The calls that have run for the longest time, the longest first.
    managers
        Managers, as in a cluster's status.
    workers
        Number of connected workers.
    clients
        Number of connected clients.
    end
        Predicted end of the known calls.
    cost
        Costs and budget, as in a cluster's status; None if nothing has a price.
    scaled
        Tag -> action (``scale-up``, ``scale-down``) -> number of changes of the wanted count since
        the scheduler started.
    failures
        Failure class -> number of failures since the scheduler started. Rare classes beyond a limit
        are counted together.
    reruns
        Reason -> number of times that a call began again for it. Empty for a cluster whose calls
        are not recorded.
    remembered
        Calls whose results are remembered: hits, misses with their reasons, and the time saved.
    """

    at: float
    seq: int = 0
    cluster: Mapping[str, Any] = field(default_factory=dict)
    pools: Mapping[str, PoolOverview] = field(default_factory=dict)
    tasks: tuple[TaskOverview, ...] = ()
    running: tuple[RunningCall, ...] = ()
    managers: tuple[Mapping[str, Any], ...] = ()
    workers: int = 0
    clients: int = 0
    end: PredictedEnd = field(default_factory=PredictedEnd)
    cost: Mapping[str, Any] | None = None
    scaled: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    failures: Mapping[str, int] = field(default_factory=dict)
    reruns: Mapping[str, int] = field(default_factory=dict)
    remembered: RememberedTotals = field(default_factory=RememberedTotals)

    @property
    def calls(self) -> CallCounts:
        """Numbers of all calls by state."""
        return sum((task.counts for task in self.tasks), CallCounts())

    def to_dict(self) -> dict[str, Any]:
        """Return the attributes, and ``calls``, as plain JSON values."""
        return {**_plain(self), "calls": _plain(self.calls)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Return the overview that :meth:`to_dict` wrote; unknown keys are left out."""
        pools = {tag: PoolOverview.from_dict(pool) for tag, pool in data.get("pools", {}).items()}
        tasks = tuple(
            _made(TaskOverview, task, counts=_made(CallCounts, task.get("counts", {})))
            for task in data.get("tasks", ())
        )
        end = _made(PredictedEnd, data.get("end") or {})
        managers = tuple(data.get("managers", ()))
        running = tuple(_made(RunningCall, call) for call in data.get("running", ()))
        remembered = RememberedTotals.from_dict(data.get("remembered") or {})
        parts = {"running": running, "managers": managers, "remembered": remembered}
        return _made(cls, data, pools=pools, tasks=tasks, end=end, **parts)


@dataclass(frozen=True)
class Events:
    """Events of a cluster in the order in which they happened.

    Attributes
    ----------
    seq
        Number of the last event.
    missed
        Whether events between the number that was asked for and the first event are gone.
    decisions
        Rows of ``scaling.jsonl``: changes of wanted worker counts, with their reasons.
    failures
        Rows of ``failures.jsonl``.
    spans
        Finished calls for a timeline: ``worker``, ``name``, ``began`` and ``ended`` (seconds since
        1970), ``failed``, the number of calls that are joined in it, and the key of the last.
    samples
        The state of the pools over time: ``at``, and ``pools`` as tag -> [wanted, running, used
        slots, slots, waiting calls].
    """

    seq: int
    missed: bool = False
    decisions: Sequence[Mapping[str, Any]] = ()
    failures: Sequence[Mapping[str, Any]] = ()
    spans: Sequence[Sequence[Any]] = ()
    samples: Sequence[Mapping[str, Any]] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the attributes as plain JSON values.

        Spans are copied, because the last span of a worker may grow. Other events are not: they do
        not change, and a copy of all would take longer than everything else in an answer.
        """
        plain = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        return {**plain, "spans": [list(span) for span in self.spans]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Return the events that :meth:`to_dict` wrote; unknown keys are left out."""
        return _made(cls, data)


def _plain(value: Any) -> Any:
    """Return a value with dictionaries in place of its dataclasses, at any depth.

    ``dataclasses.asdict`` would copy the other values too, which takes longer than to make an
    overview.
    """
    if value is None or isinstance(value, str | int | float):
        return value
    if dataclasses.is_dataclass(value):
        return {name: _plain(each) for name, each in vars(value).items()}
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(map(_plain, value))
    return value


def _made(cls: type[_T], data: Mapping[str, Any], **values: Any) -> _T:
    known = {f.name for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    return cls(**{k: v for k, v in data.items() if k in known} | values)
