"""Overview of a cluster at one moment.
The scheduler builds overviews. The dashboard, ``scalable top``, notebooks and metrics show them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

from scalable.model.cache_outcomes import CacheTotals
from scalable.model.clusters import PoolStatus

_T = TypeVar("_T")

#: States of tasks, in the order in which they are shown.
CALL_STATES = ("running", "waiting", "done", "failed", "cancelled", "found")


@dataclass(frozen=True)
class CallCounts:
    """Numbers of tasks by state."""

    running: int = 0
    #: Queued or blocked tasks.
    waiting: int = 0
    done: int = 0
    failed: int = 0
    cancelled: int = 0
    #: Tasks that did not run, because of a cache hit.
    found: int = 0

    @property
    def total(self) -> int:
        return sum(getattr(self, state) for state in CALL_STATES)

    def __add__(self, other: CallCounts) -> CallCounts:
        return CallCounts(*(getattr(self, s) + getattr(other, s) for s in CALL_STATES))


@dataclass(frozen=True)
class TaskOverview:
    """The tasks of one name."""

    name: str
    #: Tag of the pool. None for tasks without a tag.
    tag: str | None
    counts: CallCounts
    #: Mean running time of the finished tasks, in seconds. None before the first has finished.
    mean_s: float | None = None
    #: Number of task names summed up here; more than 1 if there are too many names.
    names: int = 1
    #: Number of tasks with a measured running time, and the sum of these times.
    measured: int = 0
    run_s: float = 0.0
    #: Number of finished tasks with a known queue time.
    queued: int = 0
    #: Sum of the times from waiting only for a worker until running or receiving the input.
    queued_s: float = 0.0
    #: Mean queue time. Each task of an executor has the queue time of its bundle.
    mean_queued_s: float | None = None

    def __add__(self, other: TaskOverview) -> TaskOverview:
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
    """Counts and costs of one pool at one moment."""

    status: PoolStatus
    #: Numbers of connected workers with tasks, and without tasks.
    busy: int = 0
    idle: int = 0
    used_slots: int = 0
    #: Slots of the connected workers.
    slots: int = 0
    #: Number of tasks that wait for the pool.
    waiting: int = 0
    #: Minimum and maximum (None for no limit). None for a pool with a fixed count.
    adaptive: tuple[int, int | None] | None = None
    #: As in a cluster's status, or None if nothing has a price.
    cost: Mapping[str, Any] | None = None
    #: Number of connected workers that take no more tasks, by reason.
    leaving: Mapping[str, int] = field(default_factory=dict)
    #: Last change of the desired count, as a row of ``scaling.jsonl``.
    decided: Mapping[str, Any] | None = None

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        adaptive = data.get("adaptive")
        return _made(
            cls,
            data,
            status=PoolStatus.from_dict(data.get("status", {})),
            adaptive=None if adaptive is None else tuple(adaptive),
        )


@dataclass(frozen=True)
class PredictedEnd:
    """Predicted finish of all tasks that are known at this moment."""

    #: Time in seconds since 1970, and the bounds of an 80 % interval, or None if unpredictable.
    at: float | None = None
    low: float | None = None
    high: float | None = None
    #: Reason for the prediction, or why there is none.
    reason: str = ""


@dataclass(frozen=True)
class Overview:
    """Snapshot of a cluster's state."""

    #: Seconds since 1970.
    at: float
    #: Number of the last event before it. Readers request the events after this number.
    seq: int = 0
    #: Fields of ClusterStatus, and ``project``, ``started_at`` and ``run`` (the record's path).
    cluster: Mapping[str, Any] = field(default_factory=dict)
    pools: Mapping[str, PoolOverview] = field(default_factory=dict)
    #: Tasks by name. Names with unfinished tasks come first.
    tasks: tuple[TaskOverview, ...] = ()
    #: The tasks that have run the longest, the longest first.
    running: tuple[RunningCall, ...] = ()
    #: Managers, as in a cluster's status.
    managers: tuple[Mapping[str, Any], ...] = ()
    workers: int = 0
    clients: int = 0
    end: PredictedEnd = field(default_factory=PredictedEnd)
    #: As in a cluster's status, or None if nothing has a price.
    cost: Mapping[str, Any] | None = None
    #: Changes of the desired count since the start, by tag and ``scale-up`` or ``scale-down``.
    scaled: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    #: Failures since the start by class; rare classes beyond a limit are counted together.
    failures: Mapping[str, int] = field(default_factory=dict)
    #: Restarts of tasks by reason; empty for a cluster whose tasks are not recorded.
    reruns: Mapping[str, int] = field(default_factory=dict)
    remembered: CacheTotals = field(default_factory=CacheTotals)

    @property
    def calls(self) -> CallCounts:
        return sum((task.counts for task in self.tasks), CallCounts())

    def to_dict(self) -> dict[str, Any]:
        """Return the attributes, and ``calls``, as plain JSON values."""
        return {**_plain(self), "calls": _plain(self.calls)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Decode the result of :meth:`to_dict`, ignoring unknown keys."""
        pools = {tag: PoolOverview.from_dict(pool) for tag, pool in data.get("pools", {}).items()}
        tasks = tuple(
            _made(TaskOverview, task, counts=_made(CallCounts, task.get("counts", {})))
            for task in data.get("tasks", ())
        )
        end = _made(PredictedEnd, data.get("end") or {})
        managers = tuple(data.get("managers", ()))
        running = tuple(_made(RunningCall, call) for call in data.get("running", ()))
        remembered = CacheTotals.from_dict(data.get("remembered") or {})
        parts = {"running": running, "managers": managers, "remembered": remembered}
        return _made(cls, data, pools=pools, tasks=tasks, end=end, **parts)


@dataclass(frozen=True)
class Events:
    """Events of a cluster in chronological order."""

    #: Number of the last event.
    seq: int
    #: True if events between the requested number and the first event are gone.
    missed: bool = False
    #: Rows of ``scaling.jsonl``: changes of desired worker counts, with reasons.
    decisions: Sequence[Mapping[str, Any]] = ()
    #: Rows of ``failures.jsonl``.
    failures: Sequence[Mapping[str, Any]] = ()
    #: Each: worker, name, began, ended (seconds since 1970), failed, joined tasks, last task's key.
    spans: Sequence[Sequence[Any]] = ()
    #: ``at``, and ``pools``: [wanted, running, used slots, slots, waiting tasks] by tag.
    samples: Sequence[Mapping[str, Any]] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values with copied spans, since a worker's last span may grow."""
        plain = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        return {**plain, "spans": [list(span) for span in self.spans]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        return _made(cls, data)


def _plain(value: Any) -> Any:
    """Replace dataclasses by dicts at any depth, without ``dataclasses.asdict``'s copies."""
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


# Worker overview ----------------------------------------------------------------------------------

#: States of workers: takes tasks, takes none because memory is short, finishes its last tasks.
WORKER_STATES = ("running", "paused", "leaving")


@dataclass(frozen=True)
class WorkerOverview:
    """One connected worker at one moment."""

    name: str
    #: Tag of its pool. None for a worker without one.
    tag: str | None = None
    address: str = ""
    #: One of :data:`WORKER_STATES`.
    state: str = "running"
    #: Numbers of running tasks, and of assigned tasks that have not started.
    running: int = 0
    assigned: int = 0
    #: Slots of the running tasks.
    used_slots: int = 0
    slots: int = 0
    #: Bytes in use, and the limit in bytes (0 for no limit).
    memory: int = 0
    memory_limit: int = 0
    #: Names of the running tasks, at most three.
    tasks: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self), "tasks": list(self.tasks)}  # asdict() takes ten times as long

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Decode the result of :meth:`to_dict`, ignoring unknown keys."""
        known = {f.name for f in dataclasses.fields(cls)}
        values = {key: value for key, value in data.items() if key in known}
        return cls(**{**values, "tasks": tuple(values.get("tasks", ()))})


# Call view ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RunningCall:
    """A running task."""

    key: str
    name: str
    #: Tag of its pool. None for a task without a tag.
    tag: str | None
    worker: str
    #: Seconds since the start of the task.
    since_s: float
    #: Number of tasks in a bundle (a batch of an executor's tasks); 0 for a single task.
    calls: int = 0


@dataclass(frozen=True)
class CallView:
    """All facts about one task, shortened and untrusted. Unknown ones are None."""

    key: str
    name: str = ""
    #: Tag of its pool. None for a task without a tag.
    tag: str | None = None
    #: A value of :class:`scalable.views.State`.
    state: str = "unknown"
    #: State and reason in one sentence, and a hint, as ``scalable explain`` prints them.
    sentence: str = ""
    advice: str = ""
    #: Position in the bundle and number of tasks in it. None and 0 for a single task.
    position: int | None = None
    calls: int = 0
    #: Results of other tasks among the arguments appear as keys until a worker has them.
    arguments: str | None = None
    worker: str | None = None
    #: Times in seconds since 1970.
    began: float | None = None
    ended: float | None = None
    queued_s: float | None = None
    #: Seconds for the transfer of the arguments.
    transfer_s: float | None = None
    duration_s: float | None = None
    cpu_s: float | None = None
    #: Bytes: peak memory during the task, and size of the result.
    peak_memory: int | None = None
    result_bytes: int | None = None
    #: Number of attempts, and the reason for the last repetition.
    tries: int = 0
    again: str | None = None
    failure_class: str | None = None
    message: str | None = None
    #: Innermost frame of the user's code.
    frame: str | None = None
    #: Standard error of a child process.
    stderr: str | None = None
    traceback: str | None = None
    #: Last lines that the worker process printed, for this task and for others.
    output: str | None = None
    #: Reasons why some facts are unknown.
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Decode the result of :meth:`to_dict`, ignoring unknown keys."""
        known = {field.name for field in dataclasses.fields(cls)}
        values = {name: value for name, value in data.items() if name in known}
        return cls(**values | {"notes": tuple(data.get("notes", ()))})
