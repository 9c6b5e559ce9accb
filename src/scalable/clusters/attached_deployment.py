"""The deployment of a session that is attached to a detached cluster."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scalable.client.attached import AttachedCluster
from scalable.clusters.connecting import install_loader
from scalable.clusters.ending import end
from scalable.clusters.record import SessionRecord
from scalable.errors import ClusterError
from scalable.model import ScalePlan
from scalable.protocol.events import scaling_row
from scalable.records import ClusterDirectory
from scalable.runs import RunDirectory
from scalable.runs.streams import StoredRows, stream_path

logger = logging.getLogger("scalable.clusters")


class AttachedDeployment:
    """A session's access to a detached cluster. Closing it only disconnects.
    ``counts`` are the desired workers by tag, as read at the start or last requested by this
    session.
    """

    def __init__(self, directory: ClusterDirectory) -> None:
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

    def artifact(
        self,
        path: str | os.PathLike[str],
        *,
        name: str | None,
        kind: str,
        metadata: Mapping[str, Any],
    ) -> None:
        """Record an artifact in the cluster's run. Warn if its record is not on this machine."""
        if self._run_path is None or not self._run_path.is_dir():
            where = self._run_path or "the record of its run"
            logger.warning("artifact %s is not recorded: %s is not on this machine", path, where)
            return
        run = RunDirectory.open(self._run_path)
        SessionRecord(run).artifact(path, name=name, kind=kind, metadata=metadata)
        run.release()

    @property
    def scaling_history(self) -> list[dict[str, Any]]:
        """Changes of desired counts, oldest first: all if the run is here, else this session's."""
        self.directory.fetch_run()
        if self._run_path is None or not self._run_path.is_dir():
            return list(self._asked)
        return list(StoredRows(stream_path(self._run_path, "scaling")))

    @property
    def wanted(self) -> dict[str, int]:
        return {tag: pool.wanted for tag, pool in self.cluster.pools.items()}

    def scale(self, plan: ScalePlan, *, source: str, reason: str = "scale") -> None:
        """Set pools to the plan's counts, and record ``source`` and ``reason``."""
        answer = self.cluster.order(dict(plan.workers_by_tag), source=source, reason=reason)
        before: Mapping[str, int] = answer["before"]
        logger.debug("counts asked for by %s: %s, before: %s", source, plan.workers_by_tag, before)
        for tag, count in plan.workers_by_tag.items():
            if before[tag] != count:
                self._asked.append(scaling_row(tag, before[tag], count, reason, source))
        self.counts |= plan.workers_by_tag

    def status(self) -> dict[str, Any]:
        """Return the state of the cluster, its pools, its managers and its costs."""
        found: dict[str, Any] = self.cluster.status_now()
        return found

    def set_budget(self, amount: float) -> None:
        """Set the budget of the cluster."""
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
            raise ClusterError(f"cluster {self.directory.id} has ended already")
