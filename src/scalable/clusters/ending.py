"""Deletion of clusters, and of files and jobs left by them. It can be repeated if interrupted.
Until the last step the cluster is listed as ``deleting``.
"""

from __future__ import annotations

import json
import logging
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from scalable import settings
from scalable.clusters import control, services
from scalable.clusters.discovery import list_clusters
from scalable.errors import (
    ClusterError,
    ProviderError,
    ScalableError,
    UnknownClusterError,
    UnknownProviderError,
)
from scalable.files import read_private
from scalable.liveness import SILENCE_S, end_process, is_alive, place_of
from scalable.model import ClusterRecord, ClusterStatus
from scalable.protocol.handlers import Handler
from scalable.providers.registry import get_provider, machine_providers, provider_names
from scalable.records import RECORD, ClusterDirectory, all_directories, find
from scalable.records.directory import MANAGER, OWNER
from scalable.runs.streams import LOGS
from scalable.units import format_duration

logger = logging.getLogger("scalable.clusters")

#: Seconds for the scheduler to stop its managers and itself, before they are stopped from here.
ORDERLY_TIMEOUT_S = 45.0
TERM_S = 5.0
KILL_S = 5.0
POLL_S = 0.1


def end(name: str) -> bool:
    """Delete a cluster: its workers, managers and scheduler, then its record. False if unknown.
    Raise ClusterError if its processes may run on another machine, or it is embedded in a running
    process. Raise ProviderError if a process or job does not stop: the record is kept, and the
    deletion can be repeated.
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
        logger.debug("another process has deleted cluster %s", directory.id)
    return True


def _end(directory: ClusterDirectory) -> None:
    try:
        record = directory.record()
    except FileNotFoundError:
        raise
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
    """Mark a cluster as being deleted. A full disk does not prevent the deletion."""
    try:
        directory.set_stage(stage)
    except (OSError, ClusterError) as error:
        logger.warning(
            "cluster %s is being stopped, although it cannot be marked as deleting: %s",
            directory.id,
            error,
        )


def _refuse_embedded(directory: ClusterDirectory, record: ClusterRecord) -> None:
    """Raise ClusterError if an embedded cluster may still run."""
    reason = why_ended(directory)
    if reason is not None:
        logger.warning("cluster %r has stopped: %s", record.name, reason)
        return
    creator = record.creator
    place = f"process {creator.get('pid')}" if is_alive(creator) else place_of(creator)
    raise ClusterError(
        f"cluster {record.name!r} runs in {place} of its user",
        hint="call close() of its session, or stop that process",
    )


def _go_on_without(directory: ClusterDirectory, record: ClusterRecord, error: ClusterError) -> None:
    """Log why a cluster can be deleted without its scheduler's answer, or raise ClusterError."""
    known = directory.scheduler() or {}
    if is_alive(known) is not None or record.services != services.PROCESS:
        logger.warning(
            "could not request the scheduler to stop, so its processes and jobs are stopped: %s",
            error,
        )
        return
    reason = why_ended(directory)
    if reason is None:
        _mark(directory, "made")
        silence = format_duration(max(0.0, silent_s(directory, record)))
        raise ClusterError(
            f"could not stop the scheduler of cluster {record.name!r}, {place_of(known)}: "
            f"{error.message}; it last wrote its status {silence} ago",
            hint=f"run `scalable down {record.name}` there, or here {format_duration(SILENCE_S)} "
            "after its last status",
        ) from error
    logger.warning("cluster %r is considered stopped: %s", record.name, reason)


def _ask_to_end(directory: ClusterDirectory) -> None:
    """Make the scheduler stop workers, managers and itself, and wait for its exit."""
    known = directory.scheduler()
    if known is None:
        return
    control.ask(directory, Handler.END, reason="it was stopped on request")
    for manager, its in directory.managers().items():
        if is_alive(its) is False:  # the scheduler would wait for it in vain
            control.ask(directory, Handler.LEAVE, manager=manager, nonce=its.get("nonce", ""))
    deadline = time.monotonic() + ORDERLY_TIMEOUT_S
    # Wait for the process itself: its directory is removed a moment before it exits.
    while is_alive(known) is not False and time.monotonic() < deadline:
        if is_alive(known) is None and directory.is_over():
            return
        time.sleep(POLL_S)


def clear_away(
    directory: ClusterDirectory, *, leave_alone: Collection[str] = (), keep_files: bool = False
) -> None:
    """Stop every process and job of a cluster, then remove its files. Idempotent.
    ``leave_alone`` names programs to keep, such as the calling ``scheduler``. Raises ProviderError,
    and keeps the files, if a provider cannot stop its processes or jobs.
    """
    if not directory.path.exists():
        return
    if not keep_files:
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
    if not keep_files:
        _keep_logs(directory)
        directory.remove()


def _keep_logs(directory: ClusterDirectory) -> None:
    """Copy the logs of the scheduler and the managers to those of the workers in the run."""
    try:
        run = (directory.scheduler() or {}).get("run")
        if run is None or not Path(run).is_dir():
            return
        kept = Path(run) / LOGS
        kept.mkdir(mode=0o700, exist_ok=True)
        for log in directory.logs_dir.glob("*.log"):
            shutil.copyfile(log, kept / log.name)
    except (ClusterError, OSError) as error:
        logger.warning("could not save the logs of cluster %s: %s", directory.id, error)


def _delete(provider: str, cluster_id: str) -> ProviderError | None:
    """Delete a cluster's processes and jobs in one provider's backend. Return any error."""
    try:
        delete = getattr(get_provider(provider), "delete", None)
        ended_here = None if delete is None else delete(cluster_id)
    except UnknownProviderError:
        # Registered at run time by a process that has exited, or removed from this machine.
        logger.warning(
            "provider %r of cluster %s is not available here: its resources are not searched for",
            provider,
            cluster_id,
        )
    except ProviderError as error:
        return error
    else:
        logger.debug("provider %s stopped %s", provider, ended_here or "nothing")
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
    return None if alive else f"process {known.get('pid')} of its scheduler has exited"


def identity(directory: ClusterDirectory, record: ClusterRecord) -> Mapping[str, Any] | None:
    """Return the process of a cluster's scheduler, or None if none is known or it is a job."""
    if record.embedded:
        return record.creator
    return services.identities(directory).get(services.SCHEDULER)


def silent_s(directory: ClusterDirectory, record: ClusterRecord) -> float:
    """Return the seconds since a cluster's last status or its creation."""
    written_at = (directory.status() or {}).get("written_at")
    return _age_s(record) if written_at is None else float(time.time() - written_at)


def _why_job_ended(directory: ClusterDirectory, record: ClusterRecord) -> str | None:
    states = get_provider(record.services).services(None).state(directory.id)
    if services.SCHEDULER in states:
        return None
    if services.SCHEDULER in directory.services():
        return "its scheduler's job is no longer in the queue"
    return _why_never_started(record)


def _why_never_started(record: ClusterRecord) -> str | None:
    """Return a reason if the process that was to start the scheduler has exited, or None."""
    alive = is_alive(record.creator)
    # A process of another machine had enough time: it starts a scheduler within half a minute.
    if alive is False or (alive is None and _age_s(record) > SILENCE_S):
        return "its scheduler was never started"
    return None


def _age_s(record: ClusterRecord) -> float:
    """Return the seconds since a cluster was created, or 0 if unknown."""
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
            control.ask(directory, Handler.STATUS, timeout_s=ANSWER_TIMEOUT_S)
        except ClusterError as error:
            logger.debug("the scheduler of %s: %s", record.name, error)
        else:
            return None
    if _writes(directory):
        return None
    lasting = format_duration(max(WATCH_S, silence))
    return (
        f"{place_of(known)}, where its scheduler ran, does not answer and has written no status "
        f"for {lasting}; its other programs there cannot be stopped from here, but exit without "
        "the scheduler"
    )


def _writes(directory: ClusterDirectory) -> bool:
    """Return whether the cluster writes a new status during this call."""
    before = directory.status()
    deadline = time.monotonic() + WATCH_S
    while time.monotonic() < deadline:
        time.sleep(_POLL_S)
        if directory.status() != before:
            return True
    return False


# Remains ------------------------------------------------------------------------------------------


#: Age in seconds below which a directory is kept, because a cluster may be in creation.
FRESH_S = 60.0
#: Seconds for which the files of a manager of a cluster on another machine are kept: a
#: restarted manager needs their credentials.
GUEST_S = 3600.0


@dataclass(frozen=True)
class Remains:
    """Files, jobs or processes that a stopped cluster has left."""

    #: ``stale``, ``failed``, ``interrupted``, ``orphan`` or ``leftover``.
    kind: str
    #: Name of the cluster. An orphan has none.
    name: str
    id: str
    #: Description of its removal.
    action: str
    #: Reason why it could not be removed.
    error: str | None = None


def prune(
    *,
    dry_run: bool = True,
    warn: Callable[[str], None] = lambda _: None,
    approve: Callable[[list[Remains]], None] = lambda _: None,
) -> list[Remains]:
    """Find files, jobs and processes that stopped clusters left. Remove them unless ``dry_run``.
    If something cannot be removed, its ``error`` is set. ``warn`` gets a message for each backend
    or cluster that cannot be examined. ``approve`` gets what would be removed, and raises an error
    to keep it.
    """
    found: list[tuple[Remains, Callable[[], None]]] = []
    listing = list_clusters(with_remains=True)
    for error in listing.errors:
        warn(error)
    for status in listing:
        try:
            remains = _judge(status)
        except FileNotFoundError:
            continue  # it has just been removed
        except (ScalableError, OSError) as error:
            warn(f"cluster {status.name or status.id}: {error}")
            continue
        if remains is not None:
            logger.debug("%s: cluster %s %s", remains.kind, remains.id, remains.name)
            found.append((remains, partial(_clear, remains, status)))
    for path, why in _leftovers():
        remains = Remains("leftover", "", path.name, f"remove {path}: {why}")
        found.append((remains, partial(_remove, path)))
    if dry_run:
        return [remains for remains, _ in found]
    approve([remains for remains, _ in found])
    return [_removed(remains, remove) for remains, remove in found]


def _removed(remains: Remains, remove: Callable[[], None]) -> Remains:
    """Remove remains. Return them, with the error if this fails."""
    try:
        remove()
    except (ScalableError, OSError) as error:
        return replace(remains, error=str(error))
    return remains


def _judge(status: ClusterStatus) -> Remains | None:
    found = partial(Remains, name=status.name, id=status.id)
    if status.orphan:
        return found("orphan", action=f"stop what runs there: {status.reason}")
    action = "stop what is left, remove the record"
    if status.state in ("stale", "failed"):
        return found(status.state, action=action)
    lost = status.state == "unreachable"
    if not lost and status.state not in ("creating", "starting", "deleting"):
        return None
    directory = ClusterDirectory(ClusterDirectory.parent() / status.id)
    # Without a record it is another package's cluster. A fresh one is being created or deleted.
    if directory.path.exists() and (lost or _unchanged_s(directory.path / RECORD) > FRESH_S):
        reason = why_ended(directory)
        if reason is not None:
            return found("failed" if lost else "interrupted", action=f"{action}: {reason}")
    return None


def _clear(remains: Remains, status: ClusterStatus) -> None:
    if remains.kind == "orphan":
        get_provider(status.provider).delete(status.id)
    else:
        clear_away(ClusterDirectory(ClusterDirectory.parent() / status.id))


def _leftovers() -> Iterator[tuple[Path, str]]:
    """Yield directories that are no longer needed, each with the reason."""
    known = {directory.path for directory in all_directories()[0]}
    for path in _directories(ClusterDirectory.parent()):
        unread = path in known or (path / RECORD).exists()
        if not unread and _unchanged_s(path) > FRESH_S:
            yield path, "it holds no record of a cluster"
    for path in _directories(settings.state_dir() / "embedded"):
        if _owner_is_gone(path / OWNER) and _unchanged_s(path) > FRESH_S:
            yield path, "the process whose workers used it no longer runs"
    for path in _directories(settings.state_dir() / "guests"):
        managers = list(path.glob(f"managers/*/{MANAGER}"))
        if all(_owner_is_gone(its) for its in managers) and _unchanged_s(path) > GUEST_S:
            yield path, "the managers of that cluster on other machines no longer run"


def _directories(parent: Path) -> list[Path]:
    return sorted(path for path in parent.glob("*") if path.is_dir() and not path.is_symlink())


def _unchanged_s(path: Path) -> float:
    """Return the seconds since a file or directory changed, or 0 if it was just removed."""
    try:
        return time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _owner_is_gone(file: Path) -> bool:
    """Return whether the process named in a file has certainly exited, or the file is missing."""
    try:
        return is_alive(json.loads(read_private(file))) is False
    except FileNotFoundError:
        return True
    except (OSError, ValueError, AttributeError, RecursionError, ClusterError):
        return False


def _remove(path: Path) -> None:
    try:
        ClusterDirectory(path).remove()
    except OSError as error:
        raise ProviderError(f"{path} cannot be removed: {error}") from error
