"""Clusters whose scheduler has stopped, including schedulers on other machines.
A process of another machine counts as stopped if its job has. Without a job, it must have been
silent for long, not answer, and write no status while it is watched.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from scalable.errors import ClusterError
from scalable.lifecycle import control, services
from scalable.liveness import SILENCE_S, is_alive, place_of
from scalable.protocol.handlers import SchedulerCalls
from scalable.providers.registry import get_provider
from scalable.records import ClusterDirectory
from scalable.spec import ClusterRecord
from scalable.units import format_duration

logger = logging.getLogger("scalable.lifecycle")

#: Seconds for a scheduler's answer.
ANSWER_TIMEOUT_S = 3.0
#: Seconds within which a running scheduler writes a new status: more than two intervals. Clocks
#: of two machines may differ, so the age of the last status proves nothing.
WATCH_S = 5.0
_POLL_S = 0.1


def why_ended(directory: ClusterDirectory) -> str | None:
    """Return why a cluster's scheduler counts as stopped, or None if it runs or may run.
    Raise FileNotFoundError if the cluster is just being removed, ClusterError for an unreadable
    file, and ProviderError if the backend of the scheduler's job does not answer.
    """
    record = directory.record()
    if not record.embedded and record.services != services.PROCESS:
        return _why_job_ended(directory, record)
    known = identity(directory, record)
    if known is None:
        return _why_never_started(record)
    alive = is_alive(known)
    if alive is None:
        return _why_silent(directory, record, known)
    return None if alive else f"process {known.get('pid')} of its scheduler has ended"


def identity(directory: ClusterDirectory, record: ClusterRecord) -> Mapping[str, Any] | None:
    """Return the process of a cluster's scheduler, or None if it was not started or is a job."""
    if record.embedded:
        return record.creator
    return services.identities(directory).get(services.SCHEDULER)


def silent_s(directory: ClusterDirectory, record: ClusterRecord) -> float:
    """Return the seconds since the last status of a cluster, or since it was created."""
    written_at = (directory.status() or {}).get("written_at")
    return _age_s(record) if written_at is None else float(time.time() - written_at)


def _why_job_ended(directory: ClusterDirectory, record: ClusterRecord) -> str | None:
    states = get_provider(record.services).services(None).state(directory.id)
    if services.SCHEDULER in states:
        return None
    if services.SCHEDULER in directory.services():
        return "the job of its scheduler is not in the queue any more"
    return _why_never_started(record)


def _why_never_started(record: ClusterRecord) -> str | None:
    """Return a reason if the process that was to start the scheduler has exited."""
    alive = is_alive(record.creator)
    # A process of another machine had enough time: it starts a scheduler within half a minute.
    if alive is False or (alive is None and _age_s(record) > SILENCE_S):
        return "its scheduler was never started"
    return None


def _age_s(record: ClusterRecord) -> float:
    """Return the seconds since a cluster was created, or 0 if that is unknown."""
    try:
        return time.time() - datetime.fromisoformat(record.created_at).timestamp()
    except ValueError:
        return 0.0


def _why_silent(
    directory: ClusterDirectory, record: ClusterRecord, known: Mapping[str, Any]
) -> str | None:
    silence = silent_s(directory, record)
    if 0 <= silence < SILENCE_S:
        return None  # if it is negative, the other machine's clock is ahead: this proves nothing
    if not record.embedded:
        try:
            control.ask(directory, SchedulerCalls.status, timeout_s=ANSWER_TIMEOUT_S)
        except ClusterError as error:
            logger.debug("the scheduler of %s: %s", record.name, error)
        else:
            return None
    if _writes(directory):
        return None
    lasting = format_duration(max(WATCH_S, silence))
    return (
        f"{place_of(known)}, where its scheduler ran, does not answer and has written no status "
        f"for {lasting}; what is left there cannot be ended from here, and ends by itself when it "
        "misses the scheduler"
    )


def _writes(directory: ClusterDirectory) -> bool:
    """Return whether a new status is written while this function waits."""
    before = directory.status()
    deadline = time.monotonic() + WATCH_S
    while time.monotonic() < deadline:
        time.sleep(_POLL_S)
        if directory.status() != before:
            return True
    return False
