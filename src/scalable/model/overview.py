"""Overview of a cluster at one moment.
The scheduler builds overviews. The dashboard, ``scalable top``, notebooks and metrics show them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from scalable.model.cache_outcomes import CacheTotals
from scalable.model.clusters import PoolStatus
from scalable.model.codec import Noun
from scalable.quantiles import Sum

#: States of tasks, in the order in which they are shown.
TASK_STATES = ("running", "queued", "blocked", "done", "failed", "cancelled", "cached")


@dataclass(frozen=True)
class TaskCounts(Noun):
    """Numbers of tasks by state."""

    running: int = 0
    #: Tasks that have all inputs and wait for a slot of a worker.
    queued: int = 0
    #: Tasks that wait for their inputs, which other tasks compute.
    blocked: int = 0
    done: int = 0
    failed: int = 0
    cancelled: int = 0
    #: Tasks that did not run, because of a cache hit.
    cached: int = 0

    @property
    def total(self) -> int:
        return sum(getattr(self, state) for state in TASK_STATES)

    @property
    def unfinished(self) -> int:
        return self.running + self.queued + self.blocked

    def __add__(self, other: TaskCounts) -> TaskCounts:
        return TaskCounts(*(getattr(self, s) + getattr(other, s) for s in TASK_STATES))


class Measurement(NamedTuple):
    """A measurement of tasks that is added up by task name."""

    #: Key in the rows of ``tasks.jsonl``. Those that end with ``_s`` are seconds, others bytes.
    key: str
    #: Heading, short heading and help of the column with the mean. Without them, it has none.
    heading: str = ""
    short: str = ""
    help: str = ""
    #: True if each task of a bundle has the bundle's value, False if the value is their sum.
    of_each: bool = False
    #: True if a finished run also has its quantiles.
    quantiles: bool = False

    def of_one(self, value: float, tasks: int) -> float:
        """Return the value of one of a bundle's tasks from the bundle's value."""
        return value if self.of_each else value / tasks


#: All measurements that are added up and shown, of a running cluster and of a finished run.
MEASUREMENTS = (
    Measurement("duration_s", "mean run time", "mean", "Mean running time of the finished tasks.",
                quantiles=True),
    Measurement("queued_s", "mean queue time", "queue",
                "Mean time from ready to running, without transfers.",
                of_each=True, quantiles=True),
    Measurement("peak_memory", of_each=True, quantiles=True),
    Measurement("cpu_s"),
)  # fmt: skip


_NOTHING = Sum()


class TaskSums(dict[str, Sum]):
    """Sums by the keys of :data:`MEASUREMENTS`. What no task has adds up to ``Sum()``."""

    def __missing__(self, key: str) -> Sum:
        return _NOTHING

    def measure(self, values: Mapping[str, float | None], tasks: int = 1) -> None:
        """Add the measurements of one task, or of all tasks of a bundle."""
        for each in MEASUREMENTS:
            if (value := values.get(each.key)) is not None:
                total = value * tasks if each.of_each else value
                self[each.key] = self[each.key] + Sum(tasks, total)

    def __add__(self, other: TaskSums) -> TaskSums:
        return TaskSums({key: self[key] + other[key] for key in self | other})

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        return cls({key: Sum(**values) for key, values in data.items()})

    def mean(self, key: str) -> float | None:
        """Return the mean of one measurement, or None if no task has it."""
        tasks, total = self[key]
        return total / tasks if tasks else None


@dataclass(frozen=True)
class TaskOverview(Noun):
    """The tasks of one name."""

    name: str
    #: Tag of the pool. None for tasks without a tag.
    tag: str | None
    counts: TaskCounts
    sums: TaskSums = field(default_factory=TaskSums)
    #: Number of task names summed up here; more than 1 if there are too many names.
    names: int = 1

    def __add__(self, other: TaskOverview) -> TaskOverview:
        counts, sums = self.counts + other.counts, self.sums + other.sums
        return TaskOverview(self.name, self.tag, counts, sums, self.names + other.names)

    def to_dict(self) -> dict[str, Any]:
        means = {
            "mean_s": self.sums.mean("duration_s"),
            "mean_queued_s": self.sums.mean("queued_s"),
        }
        return {**super().to_dict(), **means}


@dataclass(frozen=True)
class PoolOverview(Noun):
    """Counts and costs of one pool at one moment."""

    status: PoolStatus
    #: Numbers of connected workers with tasks, and without tasks.
    busy: int = 0
    idle: int = 0
    used_slots: int = 0
    #: Slots of the connected workers.
    slots: int = 0
    #: Numbers of tasks that wait for a slot of the pool, and of tasks that wait for their inputs.
    queued: int = 0
    blocked: int = 0
    #: Minimum and maximum (None for no limit). None for a pool with a fixed count.
    adaptive: tuple[int, int | None] | None = None
    #: As in a cluster's status, or None if nothing has a price.
    cost: Mapping[str, Any] | None = None
    #: Number of connected workers that take no more tasks, by reason.
    leaving: Mapping[str, int] = field(default_factory=dict)
    #: Last change of the desired count, as a row of ``scaling.jsonl``.
    decided: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class PredictedEnd(Noun):
    """Predicted finish of all tasks that are known at this moment."""

    #: Time in seconds since 1970, and the bounds of an 80 % interval, or None if unpredictable.
    at: float | None = None
    low: float | None = None
    high: float | None = None
    #: Reason for the prediction, or why there is none.
    reason: str = ""


@dataclass(frozen=True)
class Overview(Noun):
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
    running: tuple[RunningTask, ...] = ()
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
    def counts(self) -> TaskCounts:
        return sum((task.counts for task in self.tasks), TaskCounts())

    def to_dict(self) -> dict[str, Any]:
        """Return the attributes, and ``counts``, as plain JSON values."""
        return {**super().to_dict(), "counts": self.counts.to_dict()}


@dataclass(frozen=True)
class Events(Noun):
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
    #: ``at``, and ``pools``: [wanted, running, used slots, slots, queued, blocked] by tag.
    samples: Sequence[Mapping[str, Any]] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values with copied spans, since a worker's last span may grow."""
        plain = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        return {**plain, "spans": [list(span) for span in self.spans]}


# Worker overview ----------------------------------------------------------------------------------

#: States of workers: takes tasks, takes none because memory is short, finishes its last tasks.
WORKER_STATES = ("running", "paused", "leaving")


@dataclass(frozen=True)
class WorkerOverview(Noun):
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


# Task view ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RunningTask(Noun):
    """A running task."""

    key: str
    name: str
    #: Tag of its pool. None for a task without a tag.
    tag: str | None
    worker: str
    #: Seconds since the start of the task.
    since_s: float
    #: Number of tasks in a bundle (a batch of an executor's tasks); 0 for a single task.
    bundle: int = 0


@dataclass(frozen=True)
class TaskView(Noun):
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
    bundle: int = 0
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
