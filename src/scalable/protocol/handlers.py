"""RPC handlers that scalable's plugins add to a Dask scheduler: names, arguments, answers.

Plugins register handlers with :func:`offer`. Other processes call them with :func:`request`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, NamedTuple, TypedDict

#: Status of each pool by tag (counts, slots and reasons).
Pools = dict[str, dict[str, Any]]


class LossReason(NamedTuple):
    """Reason for the loss of a worker."""

    name: str
    reason: str
    #: Component of a worker that its backend stopped for using too much memory, otherwise empty.
    component: str = ""
    #: Memory of such a worker in bytes, otherwise 0.
    memory: int = 0


class Handler(StrEnum):
    """Name of an RPC handler on the scheduler."""

    # Called by managers
    ATTACH = "scalable_attach"
    HEARTBEAT = "scalable_heartbeat"
    LEAVE = "scalable_leave"
    DRAIN = "scalable_drain"
    RESUME = "scalable_resume"
    WITHHOLD_WORK = "scalable_withhold_work"
    ALLOW_WORK = "scalable_allow_work"
    EXCUSE_LOSSES = "scalable_excuse_losses"
    ENDED_FOR_MEMORY = "scalable_ended_for_memory"
    # Called by clients
    POOLS = "scalable_pools"
    STATUS = "scalable_status"
    OVERVIEW = "scalable_overview"
    WORKERS = "scalable_workers"
    SCALE = "scalable_scale"
    APPLY = "scalable_apply"
    ADAPT = "scalable_adapt"
    SET_BUDGET = "scalable_set_budget"
    END = "scalable_end"
    CREATOR_LIVES = "scalable_creator_lives"
    PROFILE = "scalable_profile"
    EXPLAIN = "scalable_explain"
    CALL = "scalable_call"
    LIVE_PAGE = "scalable_live_page"
    FOLLOW_SLOTS = "scalable_follow_slots"
    UPLOAD_PLACES = "scalable_upload_places"
    REASONS_OF_LOSS = "scalable_reasons_of_loss"
    FAILURES = "scalable_failures"
    RUN_FILES = "scalable_run_files"
    TAKE_FILES = "scalable_take_files"
    # Called by workers
    BEGIN = "scalable_begin"
    NOTICE = "scalable_notice"
    BUNDLE_BEGUN = "scalable_bundle_begun"
    CODE_TABLE = "scalable_code_table"
    SOURCES = "scalable_sources"
    FILES = "scalable_files"
    CHECKPOINTS = "scalable_checkpoints"
    OUT_OF_MEMORY = "scalable_out_of_memory"
    GIVE_UP = "scalable_give_up"


class Change(TypedDict):
    """Desired worker counts by tag, before and after a change."""

    before: dict[str, int]
    after: dict[str, int]


def offer(server: Any, handlers: Mapping[StrEnum, Callable[..., Any]]) -> None:
    """Register handlers on a scheduler or a worker."""
    server.handlers.update({handler.value: function for handler, function in handlers.items()})


async def request(server: Any, handler: StrEnum, **arguments: Any) -> Any:
    """Call a handler of a scheduler or a worker, and return the answer.
    ``server`` is Dask's ``rpc`` object or like it.
    """
    return await getattr(server, handler.value)(**arguments)


# Heartbeats ---------------------------------------------------------------------------------------


class HeartbeatAnswer(TypedDict):
    """Answer to a manager's heartbeat. Another process with the manager's id gets ``{}``."""

    #: Fields of :class:`scalable.manager.units.WorkerView` by worker name. Empty ones are left out.
    workers: dict[str, dict[str, Any]]
    #: Mean running time of the slowest kind of task in seconds, or 0 before any task has run.
    longest_s: float
    #: Maps tags to (serial number of the order, number of workers to provide).
    orders: dict[str, tuple[int, int]]
    #: True if the cluster is stopping, so that the manager must stop all of its workers.
    end: bool
    #: True if the scheduler counts costs, so that reports must contain charges.
    counts_costs: bool


# Workers ------------------------------------------------------------------------------------------


class WorkerHandler(StrEnum):
    """Name of an RPC handler on a worker."""

    SHOWN_CALL = "scalable_shown_call"
