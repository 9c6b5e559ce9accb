"""Lookup of recorded clusters and their status."""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from scalable.errors import ClusterError, UnknownClusterError
from scalable.model import ClusterRecord, ClusterStatus, PoolStatus
from scalable.model.clusters import pools_from_dict
from scalable.records.directory import RECORD, UNNAMED, ClusterDirectory

#: Module with the remote clusters. It is in a higher layer, because it contacts providers,
#: and is imported by name when there is such a cluster or a name is unknown here.
REMOTE = "scalable.clusters.remote"


def all_directories() -> tuple[list[ClusterDirectory], list[str]]:
    """Return the directories of all recorded clusters, and an error for each unreadable record."""
    found, errors = _read_all()
    return found, [error for _, error in errors]


def unreadable() -> list[tuple[ClusterDirectory, str]]:
    """Return the directories whose record cannot be read, each with the error."""
    return _read_all()[1]


def _records() -> list[Path]:
    """Return the paths of all records. Raises ClusterError if the state directory is closed."""
    parent = ClusterDirectory.parent()
    try:
        return sorted(parent.glob(f"*/{RECORD}"))
    except PermissionError as error:
        raise ClusterError(
            f"the directory of clusters cannot be read: {error.strerror}: {parent}",
            hint="if it is another user's, unset XDG_STATE_HOME or run as that user",
        ) from error


def _read_all() -> tuple[list[ClusterDirectory], list[tuple[ClusterDirectory, str]]]:
    found, errors = [], []
    for path in _records():
        directory = ClusterDirectory(path.parent)
        try:
            found.append(opened(path.parent))
        except FileNotFoundError:
            continue  # removed at this moment
        except ClusterError as error:
            errors.append((directory, str(error)))
    return found, errors


def copies() -> list[ClusterRecord]:
    """Return the readable records, without contacting any cluster."""
    found = []
    for path in _records():
        with suppress(ClusterError):
            found.append(ClusterDirectory(path.parent).record())
    return found


def opened(path: Path) -> ClusterDirectory:
    """Return the cluster in a directory. A remote cluster's object fetches data from its site."""
    directory = ClusterDirectory(path)
    if not directory.record().remote:
        return directory
    remote: ClusterDirectory = importlib.import_module(REMOTE).RemoteCluster(path)
    return remote


def find(name: str) -> ClusterDirectory:
    """Return a cluster's directory by name, ``provider/name``, id (prefix of 4+) or run name.
    A cluster with an unreadable record is found by its full id, or by its name if the file still
    contains it. Raise UnknownClusterError if none matches and all are readable, else ClusterError.
    """
    try:
        found = _find(name)
    except UnknownClusterError:
        if not importlib.import_module(REMOTE).fetch_copies():
            raise
        found = _find(name)
    if found.is_over():  # it is remote, and was deleted from elsewhere
        found.remove()
        found = _find(name)
    # A user who names a cluster trusts it. Until then its scheduler is not contacted.
    (found.path / UNNAMED).unlink(missing_ok=True)
    return found


def _find(name: str) -> ClusterDirectory:
    records: list[tuple[ClusterDirectory, ClusterRecord]] = []
    directories, unread = all_directories()
    for directory in directories:
        with suppress(ClusterError):  # removed or damaged at this moment
            records.append((directory, directory.record()))
    meant = [d for d, r in records if name in (r.name, f"{r.provider}/{r.name}", r.id)]
    if not meant and len(name) >= 4:
        meant = [d for d, r in records if r.id.startswith(name)]
    if not meant:
        meant = [d for d, r in records if not r.remote and _has_run(d, name)]
    if not meant:
        meant = [d for d, _ in unreadable() if d.id == name or d.may_be_named(name)]
    if len(meant) == 1:
        return meant[0]
    if not meant and unread:
        # A cluster with an unreadable record may be running: it must not be reported as stopped.
        raise ClusterError(f"no readable record belongs to a cluster {name!r}: {'; '.join(unread)}")
    if not meant:
        known = ", ".join(sorted({r.name for _, r in records})) or "none"
        raise UnknownClusterError(f"there is no cluster {name!r}", hint=f"known clusters: {known}")
    shown = {d.id: f"{r.provider}/{r.name} ({r.id[:8]})" for d, r in records}
    candidates = ", ".join(shown.get(d.id, d.id) for d in meant)
    raise ClusterError(f"{name!r} may be any of {candidates}", hint="give provider/name or the id")


def _has_run(directory: ClusterDirectory, name: str) -> bool:
    """Return whether a cluster has a run of this name, whose middle may be cut as in a table."""
    try:
        run = Path((directory.scheduler() or {}).get("run") or "").name
    except ClusterError:
        return False
    return bool(run and re.fullmatch(".*".join(map(re.escape, name.split("…"))), run))


def status_of(
    directory: ClusterDirectory, now: float, answer: Mapping[str, Any] | None = None
) -> ClusterStatus:
    """Return a cluster's status from its files and the process table.
    ``answer`` replaces the status on disk. Raises FileNotFoundError for a removed cluster.
    """
    record, scheduler = directory.record(), directory.scheduler()
    status = directory.status() if answer is None else answer
    state, reason = directory.state(record, status, now)
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
    # A tunnel's port is valid only in this process. A remote scheduler reports its own address.
    return ClusterStatus(
        name=record.name,
        id=record.id,
        provider=record.provider,
        target=record.target,
        state=state,
        address=known.get("address") if record.remote else (scheduler or {}).get("address"),
        dashboard=None if scheduler is None else scheduler.get("dashboard"),
        owner=record.owner,
        created_at=record.created_at,
        pools=pools,
        managers=tuple({**m, "state": "lost"} if gone else m for m in managers),
        embedded=record.embedded,
        reason=reason,
        ends_at=known.get("ends_at"),
        idle_ends_at=known.get("idle_ends_at"),
        cost=known.get("cost"),
        adaptive={} if gone else known.get("adaptive") or {},
        tasks=None if answer is None else answer.get("tasks"),
    )
