"""Ending clusters.

An interrupted end can be repeated. Until the last step the cluster is listed as ``deleting``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable

from scalable.errors import ClusterError, UnknownClusterError
from scalable.lifecycle import control, services
from scalable.liveness import end_process, is_alive
from scalable.providers.registry import get_provider, machine_providers
from scalable.records import ClusterDirectory, find, status_of
from scalable.spec import ClusterRecord, ClusterStatus

logger = logging.getLogger("scalable.lifecycle")

#: Seconds that the scheduler has to end its managers and itself, before they are ended from here.
ORDERLY_TIMEOUT_S = 45.0
TERM_S = 5.0
KILL_S = 5.0
POLL_S = 0.1


def end(name: str) -> bool:
    """End a cluster: its workers, managers and scheduler, and then its record.

    Parameters
    ----------
    name
        Name of the cluster, ``provider/name``, its id, or the beginning of its id.

    Returns
    -------
    bool
        False if no cluster has that name, for example because it has ended already.

    Raises
    ------
    ClusterError
        When its processes are on another machine, or it is embedded in a running process.
    """
    try:
        directory = find(name)
    except UnknownClusterError:
        return False
    record = directory.record()
    try:
        status = status_of(directory, time.time())
    except ClusterError as error:
        logger.warning("%s", error)  # an unreadable file must not keep the cluster running
    else:
        _refuse_embedded(record, status)
        if status.state == "stale":
            directory.remove()  # its process ids belong to other processes now: no signal is sent
            return True
    _mark(directory)
    _ask_to_end(directory)
    clear_away(directory)
    return True


def _mark(directory: ClusterDirectory) -> None:
    """Mark a cluster as being deleted; a full disk must not keep it running."""
    try:
        directory.set_stage("deleting")
    except (OSError, ClusterError) as error:
        logger.warning(
            "cluster %s ends, although it cannot be marked as deleting: %s", directory.id, error
        )


def _refuse_embedded(record: ClusterRecord, status: ClusterStatus) -> None:
    if record.embedded and status.state not in ("failed", "stale"):
        raise ClusterError(
            f"cluster {record.name!r} lives in process {record.creator.get('pid')} of its user",
            hint="it ends with that process, or with the session's close()",
        )


def _report_gone(directory: ClusterDirectory, manager: str, nonce: str) -> None:
    control.ask(directory, lambda scheduler: scheduler.leave(manager, nonce, gone=True))


def _ask_to_end(directory: ClusterDirectory) -> None:
    """Ask the scheduler to end workers, managers and itself, and wait for its end."""
    try:
        known = directory.scheduler()
    except ClusterError as error:
        logger.warning("%s", error)
        return
    if known is None or is_alive(known) is False:
        return
    try:
        control.ask(directory, lambda scheduler: scheduler.end("its end was requested"))
        for manager, its in directory.managers().items():
            if is_alive(its) is False:  # the scheduler would wait for it in vain
                _report_gone(directory, manager, its.get("nonce", ""))
    except ClusterError as error:
        if is_alive(known) is None:
            raise  # on another machine, where nothing can be ended from here
        logger.warning(
            "the scheduler cannot be asked to end, so its processes are ended: %s", error
        )
        return
    deadline = time.monotonic() + ORDERLY_TIMEOUT_S
    # Wait for the process itself: its directory is removed a moment before the process ends.
    while is_alive(known) is not False and time.monotonic() < deadline:
        if is_alive(known) is None and not directory.path.exists():
            return
        time.sleep(POLL_S)


def clear_away(directory: ClusterDirectory, *, leave_alone: Collection[str] = ()) -> None:
    """End every process and job of a cluster, and remove its files, in that order.

    Processes, jobs and files that are gone already are skipped.

    Parameters
    ----------
    directory
        Directory of the cluster.
    leave_alone
        Programs that are not ended, such as ``scheduler`` if the scheduler itself is the caller.
    """
    if not directory.path.exists():
        return
    try:
        record = directory.record()
    except FileNotFoundError:
        return  # another process removed it
    _mark(directory)
    known = services.identities(directory)
    logger.debug("cluster %s is removed; its services: %s", record.name, known)
    for service, identity in known.items():
        if service not in (*leave_alone, services.SCHEDULER):
            end_process(identity, TERM_S, KILL_S)
    for provider in _providers(record):
        delete = getattr(get_provider(provider), "delete", None)
        if delete is not None:
            ended = delete(record.id)
            logger.debug("provider %s ended %s", provider, ended or "nothing")
    if services.SCHEDULER not in leave_alone and services.SCHEDULER in known:
        end_process(known[services.SCHEDULER], TERM_S, KILL_S)
    directory.remove()


def _providers(record: ClusterRecord) -> Iterable[str]:
    named = [record.provider, *(m["provider"] for m in record.managers.values())]
    # The scheduler and managers of any cluster may be processes of this machine.
    return dict.fromkeys([*named, *machine_providers()])
