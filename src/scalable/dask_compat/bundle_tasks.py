"""Seams of Dask's scheduler for tasks that belong to one worker."""

from __future__ import annotations

from distributed.scheduler import Scheduler, TaskState

from scalable.dask_compat.facts import Seams, accepts, contains, has, mentions

seams = Seams("scheduler")

_STATE = "distributed.scheduler:SchedulerState"
_TASK = "distributed.scheduler:TaskState"


@seams.relies_on(
    has(_TASK, "has_lost_dependencies", "who_wants"),
    mentions(f"{_STATE}._propagate_released", "has_lost_dependencies", "forgotten"),
    mentions(f"{_STATE}._transition_processing_released", "_propagate_released"),
    contains(f"{_STATE}._TRANSITIONS_TABLE", ("processing", "released"), ("released", "forgotten")),
)
def forget_when_released(task: TaskState) -> None:
    """Make Dask cancel a task released from its worker, instead of running it elsewhere.

    A released task with lost dependencies is forgotten, and its clients are notified of a
    cancellation.
    """
    task.has_lost_dependencies = True


@seams.relies_on(*seams.facts["forget_when_released"])
def is_given_back(task: TaskState) -> bool:
    """Return whether :func:`forget_when_released` was called for a task."""
    return bool(task.has_lost_dependencies)


@seams.relies_on(
    accepts("distributed.scheduler:Scheduler.client_releases_keys", 1, "keys", "client"),
    mentions("distributed.scheduler:SchedulerState._client_releases_keys", "wants_what"),
)
def release_for(scheduler: Scheduler, task: TaskState, client: str) -> None:
    """Release a task as its client would. The client's own request has no effect then."""
    scheduler.client_releases_keys(keys=[task.key], client=client)
