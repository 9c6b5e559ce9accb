"""Finding recorded clusters by name, and their status."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from scalable.errors import ClusterError, UnknownClusterError
from scalable.liveness import is_alive, number_taken, rebooted
from scalable.records.directory import RECORD, ClusterDirectory
from scalable.records.states import Sight, state_of
from scalable.spec import ClusterRecord, ClusterStatus, PoolStatus
from scalable.spec.clusters import pools_from_dict

SHORTEST_ID = 4


def all_directories() -> tuple[list[ClusterDirectory], list[str]]:
    """Return the directories of all recorded clusters, and an error for each unreadable record."""
    found, errors = [], []
    for path in sorted(ClusterDirectory.parent().glob(f"*/{RECORD}")):
        directory = ClusterDirectory(path.parent)
        try:
            directory.record()
        except FileNotFoundError:
            continue  # removed at this moment
        except (ClusterError, OSError) as error:
            errors.append(str(error))
        else:
            found.append(directory)
    return found, errors


def find(name: str) -> ClusterDirectory:
    """Return the directory of a cluster.

    Parameters
    ----------
    name
        Name of the cluster, ``provider/name``, its id, or the first four or more letters of
        its id.

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
        except FileNotFoundError:
            continue
    meant = [d for d, r in records if name in (r.name, f"{r.provider}/{r.name}", r.id)]
    if not meant and len(name) >= SHORTEST_ID:
        meant = [d for d, r in records if r.id.startswith(name)]
    if len(meant) == 1:
        return meant[0]
    if not meant and unread:
        # The cluster may be running and its record unreadable: it must not be reported as ended.
        raise ClusterError(f"no readable record is of a cluster {name!r}: {'; '.join(unread)}")
    if not meant:
        known = ", ".join(sorted({r.name for _, r in records})) or "none"
        raise UnknownClusterError(f"there is no cluster {name!r}", hint=f"there are: {known}")
    candidates = ", ".join(f"{r.provider}/{r.name} ({r.id[:8]})" for d, r in records if d in meant)
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
    state, reason = state_of(record, status, _sight(record, scheduler), now)
    known = status or {}
    pools = pools_from_dict(known.get("pools") or {})
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


def _sight(record: ClusterRecord, scheduler: dict[str, object] | None) -> Sight | None:
    identity = record.creator if record.embedded else scheduler
    if not identity:
        # The scheduler never listened; only a restart of the machine proves that it never will.
        return Sight(alive=None, another=True) if rebooted(record.creator) else None
    another = rebooted(identity) or number_taken(identity)
    return Sight(is_alive(identity), another)
