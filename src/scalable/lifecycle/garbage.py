"""Finding and removing the remains of clusters that have ended."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from scalable import settings
from scalable.errors import ClusterError, ProviderError
from scalable.files import read_private
from scalable.lifecycle import services
from scalable.lifecycle.discovery import list_clusters
from scalable.lifecycle.ending import clear_away
from scalable.liveness import is_alive
from scalable.providers.registry import get_provider
from scalable.records import RECORD, ClusterDirectory, all_directories, find
from scalable.records.directory import MANAGER, OWNER
from scalable.spec import ClusterStatus

logger = logging.getLogger("scalable.lifecycle")

#: Age in seconds below which a directory is kept, because a cluster may be in the making.
FRESH_S = 60.0
#: Seconds for which the files of a manager whose cluster is on another machine are kept: a
#: restarted manager needs their credentials.
GUEST_S = 3600.0


@dataclass(frozen=True)
class Garbage:
    """Something that an ended cluster has left behind.

    Attributes
    ----------
    kind
        ``stale``, ``failed``, ``interrupted``, ``orphan`` or ``leftover``.
    name, id
        Name and id of the cluster; an orphan has no name.
    action
        Description of its removal.
    """

    kind: str
    name: str
    id: str
    action: str


def gc(*, dry_run: bool = True, warn: Callable[[str], None] = lambda _: None) -> list[Garbage]:
    """Find the remains of clusters that have ended, and remove them unless ``dry_run``.

    Parameters
    ----------
    dry_run
        Whether remains are only listed.
    warn
        Function that is called with a message for each place that could not list its remains.

    Raises
    ------
    ProviderError
        When a process or job that is left does not end.
    """
    found: list[Garbage] = []
    listing = list_clusters()
    for error in listing.errors:
        warn(error)
    for status in listing:
        garbage = _judge(status)
        if garbage is None:
            continue
        logger.debug("%s: cluster %s %s", garbage.kind, garbage.id, garbage.name)
        found.append(garbage)
        if not dry_run:
            _clear(garbage, status)
    for path, why in _leftovers():
        found.append(Garbage("leftover", "", path.name, f"remove {path}: {why}"))
        if not dry_run:
            _remove(path)
    return found


def _judge(status: ClusterStatus) -> Garbage | None:
    if status.orphan:
        return Garbage("orphan", status.name, status.id, f"end what runs there: {status.reason}")
    if status.state == "stale":
        return Garbage("stale", status.name, status.id, "remove the record; no process is touched")
    if status.state == "failed":
        return Garbage("failed", status.name, status.id, "end what is left, remove the record")
    if status.state in ("creating", "starting", "deleting") and _is_interrupted(status):
        return Garbage("interrupted", status.name, status.id, "end what is left, remove the record")
    return None


def _is_interrupted(status: ClusterStatus) -> bool:
    """Return whether the making or deleting of a cluster was interrupted."""
    directory = ClusterDirectory(ClusterDirectory.parent() / status.id)
    try:
        record, age_s = directory.record(), _age_s(directory.path / RECORD)
    except (FileNotFoundError, ClusterError):
        return False
    if services.is_running(directory, services.SCHEDULER) or age_s < FRESH_S:
        return False
    return status.state == "deleting" or is_alive(record.creator) is False


def _clear(garbage: Garbage, status: ClusterStatus) -> None:
    if garbage.kind == "orphan":
        get_provider(status.provider).delete(status.id)
        return
    directory = find(status.id)
    if garbage.kind == "stale":
        directory.remove()
    else:
        clear_away(directory)


def _leftovers() -> Iterator[tuple[Path, str]]:
    """Yield directories that are not needed any more, each with the reason."""
    known = {directory.path for directory in all_directories()[0]}
    for path in _directories(ClusterDirectory.parent()):
        unread = path in known or (path / RECORD).exists()
        if not unread and _age_s(path) > FRESH_S:
            yield path, "it holds no record of a cluster"
    for path in _directories(settings.state_dir() / "embedded"):
        if _owner_is_gone(path / OWNER) and _age_s(path) > FRESH_S:
            yield path, "the process whose workers used it is gone"
    for path in _directories(settings.state_dir() / "guests"):
        managers = list(path.glob(f"managers/*/{MANAGER}"))
        if all(_owner_is_gone(its) for its in managers) and _age_s(path) > GUEST_S:
            yield path, "the managers of that cluster elsewhere are gone"


def _directories(parent: Path) -> list[Path]:
    return sorted(path for path in parent.glob("*") if path.is_dir() and not path.is_symlink())


def _age_s(path: Path) -> float:
    return time.time() - path.stat().st_mtime


def _owner_is_gone(file: Path) -> bool:
    """Return whether the process named in a file is certainly gone, or the file is missing."""
    try:
        return is_alive(json.loads(read_private(file))) is False
    except FileNotFoundError:
        return True
    except (OSError, ValueError, ClusterError):
        return False


def _remove(path: Path) -> None:
    try:
        ClusterDirectory(path).remove()
    except OSError as error:
        raise ProviderError(f"{path} cannot be removed: {error}") from error
