"""Clusters that exist already: found by name, and their managers brought back."""

from __future__ import annotations

import logging
import time

from scalable.errors import ClusterError
from scalable.lifecycle import services
from scalable.lifecycle.stored_specs import stored_spec
from scalable.liveness import is_alive
from scalable.records import ClusterDirectory, all_directories, find, status_of

logger = logging.getLogger("scalable.lifecycle")


def running_cluster(name: str) -> ClusterDirectory | None:
    """A cluster of that name that can be used; one that is no more is cleared away first.

    Raises
    ------
    ClusterError
        When there is one that does not answer, is being deleted, or lives in another process.
    """
    from scalable.lifecycle.ending import end

    directory = find_exactly(name)
    if directory is None:
        return None
    record = directory.record()
    if record.stage == "creating" and is_alive(record.creator) is False:
        # Whoever began to make it is gone; what it made may be in use.
        if not services.is_running(directory, services.SCHEDULER):
            end(directory.id)
            return None
        directory.set_stage("made")
    status = status_of(directory, time.time())
    if status.state in ("failed", "stale"):
        end(directory.id)
        return None
    if status.embedded or status.state in ("unreachable", "deleting"):
        raise ClusterError(
            f"there is a cluster {name!r}, which is {status.state}"
            + (" and lives in a process of its own" if status.embedded else ""),
            hint="choose another name",
        )
    return directory


def find_exactly(name: str) -> ClusterDirectory | None:
    """The cluster that bears this very name, or None."""
    directories, unread = all_directories()
    for directory in directories:
        if directory.record().name == name:
            return directory
    if unread:
        # It may be one of those, and running.
        raise ClusterError(f"no cluster that can be read is called {name!r}: {'; '.join(unread)}")
    return None


def resume(name: str) -> list[str]:
    """Start the managers of a cluster that are not there any more; they adopt their workers.

    Returns
    -------
    list of str
        Ids of those that were started; empty where all are there.

    Raises
    ------
    ClusterError
        When there is no such cluster, or its scheduler is gone.
    """
    directory = find(name)
    status = status_of(directory, time.time())
    if status.embedded:
        raise ClusterError(f"cluster {status.name!r} lives in a process of its own user's")
    if status.state in ("failed", "stale", "deleting", "unreachable"):
        raise ClusterError(
            f"cluster {status.name!r} is {status.state} and cannot be resumed: {status.reason}",
            hint=f"`scalable down {status.name}` clears it away; `scalable up` makes it anew",
        )
    started = []
    for manager in directory.record().managers:
        if not services.is_running(directory, manager):
            services.start_manager(directory, manager, stored_spec(directory, manager))
            started.append(manager)
    return started


def lost_elsewhere(directory: ClusterDirectory) -> list[str]:
    """Managers that nothing was heard of, and that only whoever attached them can bring back."""
    own = directory.record().managers
    said = (directory.status() or {}).get("managers", ())
    return [m["id"] for m in said if m["state"] == "lost" and m["id"] not in own]
