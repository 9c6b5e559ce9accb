"""Seams (dependences on Dask internals) of Dask's scheduler: tasks that belong to one worker."""

from __future__ import annotations

from distributed.scheduler import Scheduler, TaskState

from scalable.protocol.dask_seams.facts import Seams, accepts, contains, has, mentions

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
    """Make Dask forget a task that is released from its worker, instead of running it elsewhere.

    Relies on ``TaskState.has_lost_dependencies``: a released task with lost dependencies is
    forgotten, and its clients are told that it is cancelled.
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
    """Release a task as its client would: nobody wants it any more, and no worker gets it.

    Relies on ``Scheduler.client_releases_keys``; the client's own request has no effect then.
    """
    scheduler.client_releases_keys(keys=[task.key], client=client)
