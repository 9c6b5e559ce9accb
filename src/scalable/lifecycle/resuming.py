"""Existing clusters: finding a usable one by name, and restarting its managers."""

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
    """Return the usable cluster of a name, or None; remove the remains of an ended one.

    Raises
    ------
    ClusterError
        When the cluster does not answer, is being deleted, or is embedded in another process.
    """
    from scalable.lifecycle.ending import end

    directory = find_exactly(name)
    if directory is None:
        return None
    record = directory.record()
    if record.stage == "creating" and is_alive(record.creator) is False:
        # The creator of the cluster has ended; a scheduler that runs may be in use.
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
            f"a cluster {name!r} exists and is {status.state}"
            + (" in the process of its user" if status.embedded else ""),
            hint="choose another name",
        )
    return directory


def find_exactly(name: str) -> ClusterDirectory | None:
    """Return the cluster of exactly this name, or None."""
    directories, unread = all_directories()
    for directory in directories:
        if directory.record().name == name:
            return directory
    if unread:
        # The cluster may be running, and its record unreadable.
        raise ClusterError(f"no readable record is of a cluster {name!r}: {'; '.join(unread)}")
    return None


def resume(name: str) -> list[str]:
    """Restart the managers of a cluster that have ended; they take over running workers.

    Returns
    -------
    list of str
        Ids of the managers that were started; empty where all are running.

    Raises
    ------
    ClusterError
        When no cluster has that name, or its scheduler has ended or does not answer.
    """
    directory = find(name)
    status = status_of(directory, time.time())
    if status.embedded:
        raise ClusterError(f"cluster {status.name!r} is embedded in the process of its user")
    if status.state in ("failed", "stale", "deleting", "unreachable"):
        raise ClusterError(
            f"cluster {status.name!r} is {status.state} and cannot be resumed: {status.reason}",
            hint=f"`scalable down {status.name}` removes its remains, `scalable up` restarts it",
        )
    started = []
    for manager in directory.record().managers:
        if not services.is_running(directory, manager):
            logger.debug("manager %s of cluster %s is started again", manager, status.name)
            services.start_manager(directory, manager, stored_spec(directory, manager))
            started.append(manager)
    return started


def lost_elsewhere(directory: ClusterDirectory) -> list[str]:
    """Return ids of lost managers that a user attached by hand and has to attach again."""
    own = directory.record().managers
    said = (directory.status() or {}).get("managers", ())
    return [m["id"] for m in said if m["state"] == "lost" and m["id"] not in own]
