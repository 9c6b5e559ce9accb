"""Deletion of clusters. It can be repeated after an interruption.
Until the last step the cluster is listed as ``deleting``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any

from scalable.clusters import control, services
from scalable.errors import ClusterError, ProviderError, UnknownClusterError, UnknownProviderError
from scalable.liveness import SILENCE_S, end_process, is_alive, place_of
from scalable.model import ClusterRecord
from scalable.protocol.handlers import SchedulerCalls
from scalable.providers.registry import get_provider, machine_providers, provider_names
from scalable.records import RECORD, ClusterDirectory, find
from scalable.units import format_duration

logger = logging.getLogger("scalable.clusters")

#: Seconds for the scheduler to stop its managers and itself, before they are stopped from here.
ORDERLY_TIMEOUT_S = 45.0
TERM_S = 5.0
KILL_S = 5.0
POLL_S = 0.1


def end(name: str) -> bool:
    """Delete a cluster: its workers, managers and scheduler, then its record. False if unknown.
    Raise ClusterError if its processes are on another machine and may run, or it is embedded in a
    running process. Raise ProviderError if a process or job does not stop: the record is kept, and
    the deletion can be repeated.
    """
    try:
        directory = find(name)
    except UnknownClusterError:
        return False
    try:
        _end(directory)
    except (FileNotFoundError, ClusterError):
        if (directory.path / RECORD).exists():
            raise
        logger.debug("another process has ended cluster %s meanwhile", directory.id)
    return True


def _end(directory: ClusterDirectory) -> None:
    try:
        record = directory.record()
    except ClusterError as error:
        logger.warning("%s", error.message)
        clear_away(directory)
        return
    if record.embedded:
        _refuse_embedded(directory, record)
    elif _has_scheduler_to_ask(directory):
        directory.fetch_run()
        _mark(directory)
        try:
            _ask_to_end(directory)
        except ClusterError as error:
            _go_on_without(directory, record, error)
    clear_away(directory)


def _has_scheduler_to_ask(directory: ClusterDirectory) -> bool:
    try:
        known = directory.scheduler()
        return known is not None and is_alive(known) is not False
    except ClusterError as error:
        logger.warning("%s", error)  # an unreadable file must not keep the cluster running
        return False


def _mark(directory: ClusterDirectory, stage: str = "deleting") -> None:
    """Mark a cluster as being deleted. A full disk must not keep it running."""
    try:
        directory.set_stage(stage)
    except (OSError, ClusterError) as error:
        logger.warning(
            "cluster %s ends, although it cannot be marked as deleting: %s", directory.id, error
        )


def _refuse_embedded(directory: ClusterDirectory, record: ClusterRecord) -> None:
    """Raise ClusterError if an embedded cluster may run."""
    reason = why_ended(directory)
    if reason is not None:
        logger.warning("cluster %r has ended: %s", record.name, reason)
        return
    creator = record.creator
    place = f"process {creator.get('pid')}" if is_alive(creator) else place_of(creator)
    raise ClusterError(
        f"cluster {record.name!r} lives in {place} of its user",
        hint="it ends with that process, or with the session's close()",
    )


def _report_gone(directory: ClusterDirectory, manager: str, nonce: str) -> None:
    control.ask(directory, lambda scheduler: scheduler.leave(manager, nonce, gone=True))


def _go_on_without(directory: ClusterDirectory, record: ClusterRecord, error: ClusterError) -> None:
    """Log why a cluster is deleted without its scheduler's answer, or raise ClusterError."""
    known = directory.scheduler() or {}
    if is_alive(known) is not None or record.services != services.PROCESS:
        logger.warning(
            "the scheduler cannot be asked to end, so its processes and jobs are ended: %s", error
        )
        return
    reason = why_ended(directory)
    if reason is None:
        _mark(directory, "made")
        silence = format_duration(max(0.0, silent_s(directory, record)))
        raise ClusterError(
            f"the scheduler of cluster {record.name!r}, {place_of(known)}, "
            f"cannot be asked to end: {error.message}; its last status is {silence} old",
            hint=f"run `scalable down {record.name}` there; or here, once there has been no "
            f"new status for {format_duration(SILENCE_S)}",
        ) from error
    logger.warning("cluster %r counts as ended: %s", record.name, reason)


def _ask_to_end(directory: ClusterDirectory) -> None:
    """Request the scheduler to stop workers, managers and itself, and wait for its exit."""
    known = directory.scheduler()
    if known is None:
        return
    control.ask(directory, lambda scheduler: scheduler.end("its end was requested"))
    for manager, its in directory.managers().items():
        if is_alive(its) is False:  # the scheduler would wait for it in vain
            _report_gone(directory, manager, its.get("nonce", ""))
    deadline = time.monotonic() + ORDERLY_TIMEOUT_S
    # Wait for the process itself: its directory is removed a moment before it exits.
    while is_alive(known) is not False and time.monotonic() < deadline:
        if is_alive(known) is None and directory.is_over():
            return
        time.sleep(POLL_S)


def clear_away(directory: ClusterDirectory, *, leave_alone: Collection[str] = ()) -> None:
    """Stop every process and job of a cluster, then remove its files. Idempotent.
    ``leave_alone`` names programs to keep, such as ``scheduler`` if that is the caller. Raises
    ProviderError, and keeps the files, if a provider cannot stop its processes or jobs.
    """
    if not directory.path.exists():
        return
    _mark(directory)
    known = services.identities(directory)
    logger.debug("cluster %s is removed; its services: %s", directory.id, known)
    for service, identity in known.items():
        if service not in (*leave_alone, services.SCHEDULER):
            end_process(identity, TERM_S, KILL_S)
    # An unreadable record names no provider. All providers are used, and what they cannot stop is
    # found without a record.
    names = _named_providers(directory)
    asked = provider_names() if names is None else names
    failures = [error for name in asked if (error := _delete(name, directory.id))]
    if services.SCHEDULER not in leave_alone and services.SCHEDULER in known:
        end_process(known[services.SCHEDULER], TERM_S, KILL_S)
    if failures and names is not None:
        raise failures[0]
    for failure in failures:
        logger.warning("%s", failure)
    directory.remove()


def _delete(provider: str, cluster_id: str) -> ProviderError | None:
    """Delete a provider's processes and jobs of a cluster. Return the error if it fails."""
    try:
        delete = getattr(get_provider(provider), "delete", None)
        ended_here = None if delete is None else delete(cluster_id)
    except UnknownProviderError:
        # Registered at run time by a process that has exited, or removed from this machine.
        logger.warning(
            "provider %r of cluster %s is not known here: what it started is not looked for",
            provider,
            cluster_id,
        )
    except ProviderError as error:
        return error
    else:
        logger.debug("provider %s ended %s", provider, ended_here or "nothing")
    return None


def _named_providers(directory: ClusterDirectory) -> Collection[str] | None:
    """Return the providers of a cluster, or None if its record cannot be read."""
    try:
        record = directory.record()
    except FileNotFoundError:
        return ()  # another process removed it
    except ClusterError:
        return None
    named = (record.provider, *(m["provider"] for m in record.managers.values()))
    # The scheduler and managers of any cluster may be processes of this machine.
    return dict.fromkeys([*named, *machine_providers()])


# Ended --------------------------------------------------------------------------------------------

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
