"""Finding and removing the remains of stopped clusters."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from scalable import settings
from scalable.clusters.discovery import list_clusters
from scalable.clusters.ending import clear_away, why_ended
from scalable.errors import ClusterError, ProviderError, ScalableError
from scalable.files import read_private
from scalable.liveness import is_alive
from scalable.model import ClusterStatus
from scalable.providers.registry import get_provider
from scalable.records import RECORD, ClusterDirectory, all_directories
from scalable.records.directory import MANAGER, OWNER

logger = logging.getLogger("scalable.clusters")

#: Age in seconds below which a directory is kept, because a cluster may be in creation.
FRESH_S = 60.0
#: Seconds for which the files of a manager of a cluster on another machine are kept: a
#: restarted manager needs their credentials.
GUEST_S = 3600.0


@dataclass(frozen=True)
class Garbage:
    """The remains of a stopped cluster."""

    #: ``stale``, ``failed``, ``interrupted``, ``orphan`` or ``leftover``.
    kind: str
    #: Name of the cluster. An orphan has none.
    name: str
    id: str
    #: Description of its removal.
    action: str
    #: Reason why it could not be removed.
    error: str | None = None


def gc(*, dry_run: bool = True, warn: Callable[[str], None] = lambda _: None) -> list[Garbage]:
    """Find the remains of stopped clusters, and remove them unless ``dry_run``.
    ``error`` is set on what cannot be removed. ``warn`` gets a message for each backend or cluster
    that cannot be examined.
    """
    found: list[Garbage] = []
    listing = list_clusters(with_remains=True)
    for error in listing.errors:
        warn(error)
    for status in listing:
        try:
            garbage = _judge(status)
        except FileNotFoundError:
            continue  # it has just been removed
        except (ScalableError, OSError) as error:
            warn(f"cluster {status.name or status.id}: {error}")
            continue
        if garbage is None:
            continue
        logger.debug("%s: cluster %s %s", garbage.kind, garbage.id, garbage.name)
        found.append(_removed(garbage, partial(_clear, garbage, status), dry_run=dry_run))
    for path, why in _leftovers():
        garbage = Garbage("leftover", "", path.name, f"remove {path}: {why}")
        found.append(_removed(garbage, partial(_remove, path), dry_run=dry_run))
    return found


def _removed(garbage: Garbage, remove: Callable[[], None], *, dry_run: bool) -> Garbage:
    """Remove remains unless ``dry_run``. If that fails, return them with the error."""
    if dry_run:
        return garbage
    try:
        remove()
    except (ScalableError, OSError) as error:
        return replace(garbage, error=str(error))
    return garbage


def _judge(status: ClusterStatus) -> Garbage | None:
    found = partial(Garbage, name=status.name, id=status.id)
    if status.orphan:
        return found("orphan", action=f"end what runs there: {status.reason}")
    action = "end what is left, remove the record"
    if status.state in ("stale", "failed"):
        return found(status.state, action=action)
    lost = status.state == "unreachable"
    if not lost and status.state not in ("creating", "starting", "deleting"):
        return None
    directory = ClusterDirectory(ClusterDirectory.parent() / status.id)
    # Without a record it is another package's cluster. A fresh one is being created or deleted.
    if directory.path.exists() and (lost or _age_s(directory.path / RECORD) > FRESH_S):
        reason = why_ended(directory)
        if reason is not None:
            return found("failed" if lost else "interrupted", action=f"{action}: {reason}")
    return None


def _clear(garbage: Garbage, status: ClusterStatus) -> None:
    if garbage.kind == "orphan":
        get_provider(status.provider).delete(status.id)
    else:
        clear_away(ClusterDirectory(ClusterDirectory.parent() / status.id))


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
