"""Ends clusters, and clears away what is left of those that ended by themselves.

Each step may be repeated. Until the last one the cluster is visible as ``deleting``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from scalable.errors import ClusterError, ProviderError, UnknownClusterError
from scalable.lifecycle import control, services
from scalable.lifecycle.discovery import list_clusters
from scalable.liveness import end_process, is_alive
from scalable.providers.registry import get_provider
from scalable.records import ClusterDirectory, all_directories, find, status_of
from scalable.spec import ClusterRecord, ClusterStatus

#: The scheduler gets so long to end its managers and itself before they are ended from here.
ORDERLY_TIMEOUT_S = 45.0
TERM_S = 5.0
KILL_S = 5.0
POLL_S = 0.1


def end(name: str) -> bool:
    """End a cluster: workers, managers, scheduler, and then its record.

    Parameters
    ----------
    name
        Its name, ``provider/name``, id, or the beginning of that.

    Returns
    -------
    bool
        False where there was none of that name: it is gone already.

    Raises
    ------
    ClusterError
        When its processes are on another machine, or it lives in a process of its user's.
    """
    try:
        directory = find(name)
    except UnknownClusterError:
        return False
    record = directory.record()
    status = status_of(directory, time.time())
    _refuse_embedded(record, status)
    if status.state == "stale":
        directory.remove()  # its numbers belong to other processes now: no signal is sent
        return True
    directory.set_stage("deleting")
    _ask_to_end(directory)
    clear_away(directory)
    return True


def _refuse_embedded(record: ClusterRecord, status: ClusterStatus) -> None:
    if record.embedded and status.state not in ("failed", "stale"):
        raise ClusterError(
            f"cluster {record.name!r} lives in process {record.creator.get('pid')} of its user's",
            hint="it ends with that process, or with the session's close()",
        )


def _ask_to_end(directory: ClusterDirectory) -> None:
    """Have the scheduler end everything in order, where it can be asked, and wait for that."""
    known = directory.scheduler()
    if known is None or is_alive(known) is False:
        return
    try:
        control.ask(directory, "scalable_end", reason="it was asked to")
        for manager, its in directory.managers().items():
            if is_alive(its) is False:  # nobody need wait for it
                gone = {"manager": manager, "nonce": its.get("nonce"), "gone": True}
                control.ask(directory, "scalable_leave", **gone)
    except ClusterError:
        if is_alive(known) is None:
            raise  # on another machine, where nothing can be ended from here
        return
    deadline = time.monotonic() + ORDERLY_TIMEOUT_S
    # Until the process itself is gone: its directory goes a moment before.
    while is_alive(known) is not False and time.monotonic() < deadline:
        if is_alive(known) is None and not directory.path.exists():
            return
        time.sleep(POLL_S)


def clear_away(directory: ClusterDirectory, *, leave_alone: Collection[str] = ()) -> None:
    """End every process, job and file of a cluster, in that order; what is gone is fine.

    Parameters
    ----------
    directory
        The cluster.
    leave_alone
        Services that are not ended: the one that clears away after itself.
    """
    if not directory.path.exists():
        return
    try:
        record = directory.record()
    except FileNotFoundError:
        return  # somebody else was faster
    directory.set_stage("deleting")
    known = services.identities(directory)
    for service, identity in known.items():
        if service not in (*leave_alone, services.SCHEDULER):
            end_process(identity, TERM_S, KILL_S)
    for provider in _providers(record):
        delete = getattr(get_provider(provider), "delete", None)
        if delete is not None:
            delete(record.id)
    if services.SCHEDULER not in leave_alone and services.SCHEDULER in known:
        end_process(known[services.SCHEDULER], TERM_S, KILL_S)
    directory.remove()


def _providers(record: ClusterRecord) -> Iterable[str]:
    named = [record.provider, *(m["provider"] for m in record.managers.values())]
    return dict.fromkeys([*named, "local"])


@dataclass(frozen=True)
class Garbage:
    """Something that nobody needs any more.

    Attributes
    ----------
    kind
        ``stale``, ``failed``, ``orphan`` or ``leftover``.
    name, id
        Of the cluster; an orphan has no name.
    action
        What clearing it away means.
    """

    kind: str
    name: str
    id: str
    action: str


def gc(*, dry_run: bool = True, warn: Callable[[str], None] = lambda _: None) -> list[Garbage]:
    """Find what is left of clusters that are no more, and clear it away unless told not to.

    Parameters
    ----------
    dry_run
        Only look.
    warn
        Told of places that could not say what is left there.

    Raises
    ------
    ProviderError
        When a place does not end what is left there.
    """
    found: list[Garbage] = []
    listing = list_clusters()
    for error in listing.errors:
        warn(error)
    for status in listing:
        garbage = _judge(status)
        if garbage is None:
            continue
        found.append(garbage)
        if not dry_run:
            _clear(garbage, status)
    found += _leftovers(dry_run=dry_run)
    return found


def _judge(status: ClusterStatus) -> Garbage | None:
    if status.orphan:
        return Garbage("orphan", status.name, status.id, f"end what runs there: {status.reason}")
    if status.state == "stale":
        return Garbage("stale", status.name, status.id, "remove the record; no process is touched")
    if status.state == "failed":
        return Garbage("failed", status.name, status.id, "end what is left, remove the record")
    return None


def _clear(garbage: Garbage, status: ClusterStatus) -> None:
    if garbage.kind == "orphan":
        get_provider(status.provider).delete(status.id)
        return
    directory = find(status.id)
    if garbage.kind == "stale":
        directory.remove()
    else:
        clear_away(directory)


def _leftovers(*, dry_run: bool) -> list[Garbage]:
    """Directories that never became a cluster's, or have lost their record."""
    found = []
    known = {directory.path for directory in all_directories()[0]}
    for path in (
        sorted(ClusterDirectory.parent().glob("*")) if ClusterDirectory.parent().is_dir() else ()
    ):
        unread = path in known or (path / "record.json").exists()
        if path.is_dir() and not unread and time.time() - path.stat().st_mtime > 60:
            found.append(Garbage("leftover", "", path.name, f"remove {path}"))
            if not dry_run:
                try:
                    ClusterDirectory(path).remove()
                except OSError as error:
                    raise ProviderError(f"{path} cannot be removed: {error}") from error
    return found
