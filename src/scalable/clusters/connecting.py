"""Connections to a cluster: by name, by access file, or from a plain ``distributed.Client``."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalable.clusters.control import refuse_gone
from scalable.clusters.ending import end
from scalable.clusters.record import SessionRecord
from scalable.clusters.remote import flush_run
from scalable.errors import ClusterError, UnknownClusterError
from scalable.liveness import is_alive, place_of
from scalable.model import ScalePlan
from scalable.protocol.addresses import is_loopback
from scalable.protocol.events import scaling_row
from scalable.records import AccessFile, ClusterDirectory, all_directories, find, find_access
from scalable.runs.directory import RunDirectory
from scalable.runs.streams import StoredRows

if TYPE_CHECKING:
    from distributed import Security

    from scalable.client.client import ScalableClient

logger = logging.getLogger("scalable.clusters")

LOADER = "scalable.clusters.connecting.load_security"
LOADER_SETTING = "distributed.client.security-loader"
#: Environment variable that Dask reads for :data:`LOADER_SETTING`.
LOADER_VARIABLE = "DASK_DISTRIBUTED__CLIENT__SECURITY_LOADER"


def connect(name: str, *, asynchronous: bool = False) -> ScalableClient:
    """Connect to a running cluster.

    Parameters
    ----------
    name
        Name of the cluster, ``provider/name``, its id or a prefix of its id, or the path of an
        access file.
    asynchronous
        Whether the client is used with ``await``.

    Returns
    -------
    ScalableClient
        Closing it only disconnects.

    Raises
    ------
    ClusterError
        When no cluster or several clusters match, the cluster does not answer, or other users could
        read its credentials.
    """
    from scalable.client.client import ScalableClient
    from scalable.protocol.credentials import no_answer, security_of

    with suppress(UnknownClusterError):  # the path of an access file
        refuse_gone(find(name))
    access = find_access(name)
    install_loader()
    logger.debug("connecting to cluster %s at %s", access.name, access.address)
    try:
        return ScalableClient(
            access.address,
            security=security_of(access.pem),
            tasks=access.tasks,
            labels=access.labels,
            tags=access.tags,
            asynchronous=asynchronous,
        )
    except (OSError, TimeoutError) as error:
        raise ClusterError(
            f"the scheduler of cluster {access.name!r} does not answer at {access.address}: "
            f"{no_answer(error)}",
            hint=_listens_elsewhere(access) or f"`scalable status {access.name}` shows its state",
        ) from error


def _listens_elsewhere(access: AccessFile) -> str | None:
    """Return a hint if the scheduler listens only on another machine's loopback interface."""
    directory = ClusterDirectory(ClusterDirectory.parent() / access.id)
    known = directory.scheduler() or {}
    if not is_loopback(access.address) or is_alive(known):
        return None
    place = f"the machine of {place_of(known)}" if known else "its own machine"
    return f"it listens only on {place}: connect there, or set interface of the target"


def load_security(info: dict[str, Any]) -> Security | None:
    """Return credentials for ``info["address"]`` or None, as a security loader of Dask."""
    from scalable.protocol.credentials import security_of

    for directory in all_directories()[0]:
        try:
            # A tunnel's client has credentials already, and scheduler() would open a tunnel.
            scheduler = None if directory.record().remote else directory.scheduler()
        except FileNotFoundError:
            continue  # removed at this moment
        except ClusterError as error:
            logger.warning("%s", error)  # do not fail because of another cluster
            continue
        if scheduler is not None and scheduler.get("address") == info.get("address"):
            try:
                return security_of(directory.pem())
            except ClusterError:
                if not directory.record().embedded:
                    raise
    return None


def install_loader() -> None:
    """Make plain Dask clients find this user's credentials, unless the user has set a loader."""
    import dask

    if not dask.config.get(LOADER_SETTING, None):
        dask.config.set({LOADER_SETTING: LOADER})


def snippet(directory: ClusterDirectory) -> str:
    """Return example code that uses a cluster, without secrets."""
    name = directory.record().name
    scheduler = directory.scheduler() or {}
    address = scheduler.get("address", "?")
    # The link contains the dashboard's token, and this code may end up in a shared file.
    browser = (
        f"\n# In a browser: open the link of the dashboard that `scalable status {name}` shows\n"
        if scheduler.get("dashboard")
        else ""
    )
    if directory.record().remote:
        return f"""\
# Python, on any machine with access to its backend:
import scalable
client = scalable.connect({name!r})

# A workflow's script:
#   scalable run --cluster {name} --workflow workflow.py
"""
    return f"""\
# Python:
import scalable
client = scalable.connect({name!r})

# A bare Dask client, in a process with
#   {LOADER_VARIABLE}={LOADER}
from distributed import Client
client = Client({address!r})

# A workflow's script:
#   scalable run --cluster {name} --workflow workflow.py

# From another machine, with the file that `scalable connect {name} --export FILE` writes:
#   scalable.connect("FILE")
{browser}"""


# Sessions -----------------------------------------------------------------------------------------


class AttachedDeployment:
    """A session's access to a detached cluster. Closing it only disconnects."""

    def __init__(self, directory: ClusterDirectory) -> None:
        from scalable.client.attached import AttachedCluster

        install_loader()
        self.directory = directory
        self.cluster: Any = AttachedCluster.from_name(directory.id)
        self._asked: list[dict[str, Any]] = []
        status = directory.status() or {"pools": {}}
        self.counts: dict[str, int] = {t: p["wanted"] for t, p in status["pools"].items()}
        directory.fetch_run()
        self._run_path = self.run_path

    @property
    def run_path(self) -> Path | None:
        """Directory of the cluster's run record, or None."""
        run = (self.directory.scheduler() or {}).get("run")
        return Path(run) if run else None

    def write_rows(self) -> None:
        """Make the scheduler write the buffered rows of the record."""
        flush_run(self.directory)

    def artifact(
        self,
        path: str | os.PathLike[str],
        *,
        name: str | None,
        kind: str,
        metadata: Mapping[str, Any],
    ) -> None:
        """Record an artifact in the cluster's run, or warn if the record is on another machine."""
        if self._run_path is None or not self._run_path.is_dir():
            where = self._run_path or "the record of its run"
            logger.warning("cannot record artifact %s: %s is not on this machine", path, where)
            return
        run = RunDirectory.open(self._run_path)
        SessionRecord(run).artifact(path, name=name, kind=kind, metadata=metadata)
        run.release()

    @property
    def scaling_history(self) -> list[dict[str, Any]]:
        """Changes of desired counts, oldest first. Without a local record, only this session's."""
        self.directory.fetch_run()
        if self._run_path is None or not self._run_path.is_dir():
            return list(self._asked)
        return list(StoredRows(self._run_path, "scaling"))

    @property
    def wanted(self) -> dict[str, int]:
        return {tag: pool.wanted for tag, pool in self.cluster.pools.items()}

    def scale(self, plan: ScalePlan, *, source: str, reason: str = "scale") -> None:
        """Set pools to the plan's counts, and record ``source`` and ``reason``."""
        answer = self.cluster.order(dict(plan.workers_by_tag), source=source, reason=reason)
        before: Mapping[str, int] = answer["before"]
        logger.debug("counts requested by %s: %s, before: %s", source, plan.workers_by_tag, before)
        for tag, count in plan.workers_by_tag.items():
            if before[tag] != count:
                self._asked.append(scaling_row(tag, before[tag], count, reason, source))
        self.counts |= plan.workers_by_tag

    def status(self) -> dict[str, Any]:
        """Return the state of the cluster, its pools, its managers and its costs."""
        found: dict[str, Any] = self.cluster.status_now()
        return found

    def set_budget(self, amount: float) -> None:
        self.cluster.set_budget(amount)

    def close(self) -> None:
        """Disconnect. The cluster keeps running."""
        cluster, self.cluster = self.cluster, None
        if cluster is not None:
            self.directory.fetch_run()
            cluster.close()

    def delete(self) -> None:
        """Stop the cluster and delete everything that belongs to it."""
        self.close()
        if not end(self.directory.id):
            raise ClusterError(f"cluster {self.directory.id} has already stopped")
