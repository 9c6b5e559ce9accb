"""Finding recorded clusters by name, and their status."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from scalable.errors import ClusterError, UnknownClusterError
from scalable.liveness import is_alive, number_taken, rebooted
from scalable.records.directory import RECORD, ClusterDirectory
from scalable.records.states import Sight, state_of
from scalable.spec import ClusterRecord, ClusterStatus, PoolStatus, names
from scalable.spec.clusters import pools_from_dict

SHORTEST_ID = 4


def all_directories() -> tuple[list[ClusterDirectory], list[str]]:
    """Return the directories of all recorded clusters, and an error for each unreadable record."""
    found, errors = _read_all()
    return found, [error for _, error in errors]


def unreadable() -> list[tuple[ClusterDirectory, str]]:
    """Return the directories whose record cannot be read, each with the error."""
    return _read_all()[1]


def _read_all() -> tuple[list[ClusterDirectory], list[tuple[ClusterDirectory, str]]]:
    found, errors = [], []
    for path in sorted(ClusterDirectory.parent().glob(f"*/{RECORD}")):
        directory = ClusterDirectory(path.parent)
        try:
            directory.record()
        except FileNotFoundError:
            continue  # removed at this moment
        except ClusterError as error:
            errors.append((directory, str(error)))
        else:
            found.append(directory)
    return found, errors


def find(name: str) -> ClusterDirectory:
    """Return the directory of a cluster.

    Parameters
    ----------
    name
        Name of the cluster, ``provider/name``, its id, or the first four or more letters of
        its id. A cluster whose record cannot be read is found by its whole id, or by its name if
        the file still contains it.

    Raises
    ------
    UnknownClusterError
        When no cluster matches; the hint lists the known names.
    ClusterError
        When several clusters match (the message lists them), or when none matches and some records
        cannot be read.
    """
    records: list[tuple[ClusterDirectory, ClusterRecord]] = []
    directories, unread = all_directories()
    for directory in directories:
        try:
            records.append((directory, directory.record()))
        except (FileNotFoundError, ClusterError):
            continue  # removed or damaged at this moment
    meant = [d for d, r in records if name in (r.name, f"{r.provider}/{r.name}", r.id)]
    if not meant and len(name) >= SHORTEST_ID:
        meant = [d for d, r in records if r.id.startswith(name)]
    if not meant:
        meant = [d for d, _ in unreadable() if d.id == name or d.may_be_named(name)]
    if len(meant) == 1:
        return meant[0]
    if not meant and unread:
        # The cluster may be running and its record unreadable: it must not be reported as ended.
        raise ClusterError(f"no readable record is of a cluster {name!r}: {'; '.join(unread)}")
    if not meant:
        known = ", ".join(sorted({r.name for _, r in records})) or "none"
        raise UnknownClusterError(f"there is no cluster {name!r}", hint=f"there are: {known}")
    shown = {d.id: f"{r.provider}/{r.name} ({r.id[:8]})" for d, r in records}
    candidates = ", ".join(shown.get(d.id, d.id) for d in meant)
    raise ClusterError(f"{name!r} may be any of {candidates}", hint="give provider/name or the id")


def status_of(
    directory: ClusterDirectory, now: float, answer: Mapping[str, Any] | None = None
) -> ClusterStatus:
    """Return the status of a cluster, from its files and the process table.

    Parameters
    ----------
    directory
        The cluster.
    now
        Epoch seconds.
    answer
        Status that the scheduler has just given; None to use the status on disk.

    Raises
    ------
    FileNotFoundError
        When the cluster was removed at this moment.
    """
    record, scheduler = directory.record(), directory.scheduler()
    status = directory.status() if answer is None else answer
    state, reason = state_of(record, status, _sight(directory, record, scheduler), now)
    known = status or {}
    try:
        pools = pools_from_dict(known.get("pools") or {})
    except TypeError as error:
        raise ClusterError(f"the status of cluster {record.name!r} is damaged: {error}") from error
    if not pools:
        pools = {tag: PoolStatus(wanted=count) for tag, count in record.wanted.items()}
    gone = state in ("failed", "stale")
    if gone:
        pools = {tag: replace(pool, running=0, launching=0) for tag, pool in pools.items()}
    managers = known.get("managers") or [
        {"id": manager, "target": described["target"], "state": "starting"}
        for manager, described in record.managers.items()
    ]
    return ClusterStatus(
        name=record.name,
        id=record.id,
        provider=record.provider,
        target=record.target,
        state=state,
        address=None if scheduler is None else scheduler.get("address"),
        dashboard=None if scheduler is None else scheduler.get("dashboard"),
        owner=record.owner,
        created_at=record.created_at,
        pools=pools,
        managers=tuple({**m, "state": "lost"} if gone else m for m in managers),
        embedded=record.embedded,
        reason=reason,
        ends_at=known.get("ends_at"),
        idle_ends_at=known.get("idle_ends_at"),
    )


def _sight(
    directory: ClusterDirectory, record: ClusterRecord, scheduler: dict[str, object] | None
) -> Sight | None:
    identity: Mapping[str, Any] | None = record.creator if record.embedded else scheduler
    if not identity:
        started = directory.services().get(names.SCHEDULER, {})
        identity = started if "pid" in started else None
    if not identity:
        # No scheduler was started; only a restart of the machine proves that none will be.
        return Sight(alive=None, another=True) if rebooted(record.creator) else None
    another = rebooted(identity) or number_taken(identity)
    return Sight(is_alive(identity), another)
