"""Waiting for a detached cluster that was just started. This module does not import Dask."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from scalable.clusters import services
from scalable.errors import ClusterError, ProviderError
from scalable.model import ClusterStatus
from scalable.providers.registry import provider_traits
from scalable.records import ClusterDirectory, status_of

logger = logging.getLogger("scalable.clusters")

READY_POLL_S = 0.05
#: Seconds between two queries of the jobs of scheduler and managers.
JOBS_INTERVAL_S = 5.0
#: Longest wait for a manager in seconds. Its job may be queued.
MANAGER_TIMEOUT_S = 3600.0


def wait_until_ready(
    directory: ClusterDirectory,
    on_status: Callable[[ClusterStatus], None] = lambda _: None,
    timeout_s: float = 600.0,
    *,
    workers: bool = True,
) -> ClusterStatus:
    """Wait until the first worker of each pool runs, or without ``workers``, the scheduler.
    ``on_status`` gets each status. Raise ClusterError if a program exited, a pool cannot start, or
    ``timeout_s`` is over. The cluster keeps running.
    """
    deadline = time.monotonic() + timeout_s
    ends = _Ends(directory, managers=workers)
    while True:
        status = status_of(directory, time.time())
        on_status(status)
        ends.refuse(status)
        listening = directory.scheduler() is not None and directory.status() is not None
        if listening and (not workers or _has_first_workers(status)):
            return status
        if time.monotonic() > deadline:
            money = ", and costs money" if _costs(directory) else ""
            raise ClusterError(
                f"cluster {status.name!r} was not ready after {timeout_s:g} s: {status.reason}",
                hint=f"it keeps running{money}; see `scalable status {status.name}` and "
                f"`scalable logs {status.name}`, or end it: `scalable down {status.name}`",
            )
        time.sleep(READY_POLL_S)


def _costs(directory: ClusterDirectory) -> bool:
    record = directory.record()
    return record.remote and provider_traits(record.provider).asks_first


def _has_first_workers(status: ClusterStatus) -> bool:
    if status.state not in ("running", "degraded"):
        return False
    return all(pool.running for pool in status.pools.values() if pool.wanted)


class _Ends:
    """The programs of a cluster that exit during a wait. ``managers``: they are needed as well."""

    def __init__(self, directory: ClusterDirectory, *, managers: bool) -> None:
        self._directory = directory
        self._managers = managers
        self._asked_at = time.monotonic()

    def refuse(self, status: ClusterStatus) -> None:
        """Raise ClusterError if a needed program has exited, or a pool was given up."""
        name = status.name
        for service, line in (*services.ended_early(self._directory), *self._ended_jobs()):
            if self._managers or service == services.SCHEDULER:
                shown = services.service_name(service)
                raise ClusterError(
                    f"{shown} of cluster {name!r} ended: {line or 'no output'}",
                    hint=f"`scalable logs {name} --worker {shown}` shows its output; `scalable up` "
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

    def _ended_jobs(self) -> list[tuple[str, str]]:
        """Return the programs whose jobs have ended, each with the last line of its output."""
        if time.monotonic() - self._asked_at < JOBS_INTERVAL_S:
            return []
        try:
            ended = services.ended_jobs(self._directory)
        except ProviderError as error:
            logger.debug("the jobs of cluster %s are not known: %s", self._directory.id, error)
            ended = []
        self._asked_at = time.monotonic()
        return [(service, services.last_line(self._directory, service)) for service in ended]


def wait_for_managers(directory: ClusterDirectory, names: Sequence[str]) -> None:
    """Wait until managers have attached to the scheduler.
    Raise ClusterError if a manager has exited instead, or the time is over.
    """
    deadline = time.monotonic() + MANAGER_TIMEOUT_S
    ends = _Ends(directory, managers=True)
    while True:
        status = status_of(directory, time.time())
        ends.refuse(status)
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
