"""Waiting for a detached cluster that was just started.

This module does not import Dask.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from scalable.errors import ClusterError
from scalable.lifecycle import services
from scalable.records import ClusterDirectory, status_of
from scalable.spec import ClusterStatus

READY_POLL_S = 0.05
#: Longest wait for a manager in seconds; its job may wait in a queue.
MANAGER_TIMEOUT_S = 3600.0


def wait_until_ready(
    directory: ClusterDirectory,
    on_status: Callable[[ClusterStatus], None] = lambda _: None,
    timeout_s: float = 600.0,
    *,
    workers: bool = True,
) -> ClusterStatus:
    """Wait until the first worker of each wanted pool runs.

    Parameters
    ----------
    directory
        Directory of the cluster.
    on_status
        Function that is called with the status each time that it is read.
    timeout_s
        Longest wait in seconds.
    workers
        Whether to wait for workers, and not only for the scheduler.

    Raises
    ------
    ClusterError
        When a program of the cluster ended, a pool cannot start, or the time is over. The cluster
        keeps running.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        status = status_of(directory, time.time())
        on_status(status)
        _refuse_dead(directory, status, managers=workers)
        listening = directory.scheduler() is not None and directory.status() is not None
        if listening and (not workers or _has_first_workers(status)):
            return status
        if time.monotonic() > deadline:
            raise ClusterError(
                f"cluster {status.name!r} was not ready after {timeout_s:g} s: {status.reason}",
                hint=f"it keeps running; see `scalable status {status.name}` and "
                f"`scalable logs {status.name}`",
            )
        time.sleep(READY_POLL_S)


def _has_first_workers(status: ClusterStatus) -> bool:
    if status.state not in ("running", "degraded"):
        return False
    return all(pool.running for pool in status.pools.values() if pool.wanted)


def _refuse_dead(directory: ClusterDirectory, status: ClusterStatus, *, managers: bool) -> None:
    name = status.name
    for service, log in services.ended_early(directory):
        if managers or service == services.SCHEDULER:
            raise ClusterError(
                f"{service} of cluster {name!r} ended: {log or 'no output'}",
                hint=f"`scalable logs {name} --worker {service}` shows its output; `scalable up` "
                f"starts it again, `scalable down {name}` removes the cluster",
            )
    if status.state in ("failed", "stale", "deleting", "unreachable"):
        raise ClusterError(
            f"cluster {name!r} is {status.state}: {status.reason or 'no reason is known'}"
        )
    for tag, pool in status.pools.items():
        if pool.reason and not pool.running:
            raise ClusterError(
                f"pool {tag!r} of cluster {name!r} has no worker: {pool.reason}",
                hint=f"`scalable scale {name} {tag}=N` tries again",
            )


def wait_for_managers(directory: ClusterDirectory, names: Sequence[str]) -> None:
    """Wait until managers have attached to the scheduler.

    Raises
    ------
    ClusterError
        When a manager has ended instead, or the time is over.
    """
    deadline = time.monotonic() + MANAGER_TIMEOUT_S
    while True:
        status = status_of(directory, time.time())
        _refuse_dead(directory, status, managers=True)
        attached = {m["id"] for m in status.managers if m["state"] == "attached"}
        missing = [name for name in names if name not in attached]
        if not missing:
            return
        if time.monotonic() > deadline:
            raise ClusterError(
                f"manager {missing[0]!r} of cluster {status.name!r} has not attached after "
                f"{MANAGER_TIMEOUT_S:g} s",
                hint=f"see `scalable logs {status.name} --worker manager-{missing[0]}`",
            )
        time.sleep(READY_POLL_S)
