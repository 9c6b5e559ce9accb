"""Existing clusters: finding a usable one by name, and restarting its managers."""

from __future__ import annotations

import logging
import time
from contextlib import suppress

from scalable.clusters import services
from scalable.clusters.control import ask
from scalable.clusters.ending import clear_away, why_ended
from scalable.clusters.specs import stored_spec
from scalable.errors import ClusterError
from scalable.liveness import is_alive, place_of
from scalable.protocol.handlers import Handler
from scalable.providers.registry import provider_traits
from scalable.records import ClusterDirectory, all_directories, find, status_of, unreadable
from scalable.records.directory import UNNAMED

logger = logging.getLogger("scalable.clusters")

#: States of a cluster whose scheduler has reported recently.
ANSWERS = ("running", "degraded", "unmanaged")
REPORT_POLL_S, REPORT_S = 0.3, 30.0


def running_cluster(name: str) -> ClusterDirectory | None:
    """Return the usable cluster with a name, or None. Remove the remains of a stopped cluster.
    Raise ClusterError if it does not answer, is being deleted, or is embedded in another process,
    and ProviderError if the backend of its scheduler's job does not answer.
    """
    directory = find_exactly(name)
    if directory is None:
        return None
    status = status_of(directory, time.time())
    if status.state not in ANSWERS:
        reason = why_ended(directory)
        if reason is not None or status.state in ("failed", "stale"):
            logger.warning(
                "removing what is left of cluster %r, which had stopped: %s",
                name,
                reason or status.reason,
            )
            clear_away(directory)
            return None
    if status.embedded or status.state in ("unreachable", "deleting"):
        raise ClusterError(
            f"a cluster {name!r} exists and is {status.state}"
            + (" in the process of its user" if status.embedded else "")
            + (f": {status.reason}" if status.reason else ""),
            hint=f"choose another name, or delete it: scalable down {name}",
        )
    if status.state == "creating" and is_alive(directory.record().creator) is False:
        directory.set_stage("made")  # its creator has exited, and its scheduler runs
    return directory


def find_exactly(name: str) -> ClusterDirectory | None:
    """Return the cluster with exactly this name, or None. May raise ClusterError."""
    directories, _ = all_directories()
    for directory in directories:
        with suppress(FileNotFoundError):
            if directory.record().name == name:
                (directory.path / UNNAMED).unlink(missing_ok=True)
                return directory
    for directory, error in unreadable():
        if directory.may_be_named(name):
            # The cluster may be running, and its record unreadable.
            raise ClusterError(f"the record of cluster {name!r} cannot be read: {error}")
        logger.warning("%s", error)
    return None


def restart_managers(name: str) -> list[str]:
    """Restart a cluster's exited managers, and return their ids. They adopt running workers.
    Raise ClusterError for an unknown name, a scheduler that does not answer, or workers that only
    another machine can adopt.
    """
    directory = find(name)
    status = status_of(directory, time.time())
    if status.embedded:
        raise ClusterError(f"cluster {status.name!r} is embedded in the process of its user")
    if status.state in ("failed", "stale", "deleting", "unreachable"):
        raise ClusterError(
            f"cluster {status.name!r} is {status.state}, and its managers cannot be restarted: "
            f"{status.reason}",
            hint=f"run `scalable down {status.name}` to remove it, or "
            f"`scalable up --name {status.name}` to restart it",
        )
    started = []
    for manager, described in directory.record().managers.items():
        if _runs(directory, manager, described["provider"]):
            continue
        logger.debug("manager %s of cluster %s is started again", manager, status.name)
        services.start_manager(directory, manager, stored_spec(directory, manager))
        started.append(manager)
    return started


def _runs(directory: ClusterDirectory, manager: str, provider: str) -> bool:
    """Return whether a manager runs. For a manager on another machine, ask the scheduler.
    Raise ClusterError if the manager has exited and its workers are processes of another machine,
    or if the scheduler does not answer.
    """
    known = services.presence(directory, manager)
    if known is not None:
        return known
    identity = services.identities(directory)[manager]
    place = place_of(identity)
    again = f"run `scalable manager restart {directory.id}` there"
    try:
        if reports(directory, manager):
            return True
    except ClusterError as error:
        raise ClusterError(
            f"manager {manager!r} is {place}, and the scheduler to which it reports cannot be "
            f"queried: {error.message}",
            hint=again,
        ) from error
    if provider_traits(provider).on_this_machine:
        raise ClusterError(
            f"manager {manager!r} was {place} and has exited: its workers are processes of that "
            "machine and can be taken over only there",
            hint=again,
        )
    return False


def reports(directory: ClusterDirectory, manager: str, *, restarted: bool = False) -> bool:
    """Wait for a manager's next report. Return False if it is lost, or exits when restarted."""
    began = time.monotonic()
    while True:
        waited_s = time.monotonic() - began
        rows = ask(directory, Handler.STATUS)["managers"]
        row = next((row for row in rows if row["id"] == manager), None)
        if row is not None and row["state"] != "lost" and row["silent_s"] < waited_s:
            return True
        waits = restarted and waited_s < REPORT_S and services.is_running(directory, manager)
        if not waits and (row is None or row["state"] == "lost"):
            return False
        time.sleep(REPORT_POLL_S)


def lost_elsewhere(directory: ClusterDirectory) -> list[str]:
    """Return the ids of lost managers that a user attached and must attach again."""
    own = directory.record().managers
    said = (directory.status() or {}).get("managers", ())
    return [m["id"] for m in said if m["state"] == "lost" and m["id"] not in own]
