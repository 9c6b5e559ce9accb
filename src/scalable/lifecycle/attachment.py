"""A session's hold on a cluster that lives in processes of its own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scalable.errors import ClusterError
from scalable.lifecycle.connecting import install_loader
from scalable.lifecycle.ending import end
from scalable.lifecycle.scaling_rows import scaling_row
from scalable.records import ClusterDirectory
from scalable.spec import ScalePlan


class Attachment:
    """A detached cluster, as a session holds it: closing only disconnects.

    Parameters
    ----------
    directory
        The cluster.

    Attributes
    ----------
    cluster
        An :class:`~scalable.cluster.attached.AttachedCluster`.
    counts
        Tag -> workers that are wanted, as far as is known here.
    scaling_history
        Changes that were asked for here.
    """

    def __init__(self, directory: ClusterDirectory) -> None:
        from scalable.cluster.attached import AttachedCluster

        install_loader()
        self.directory = directory
        self.cluster: Any = AttachedCluster.from_name(directory.id)
        self.scaling_history: list[dict[str, Any]] = []
        status = directory.status() or {"pools": {}}
        self.counts: dict[str, int] = {t: p["wanted"] for t, p in status["pools"].items()}

    @property
    def run_path(self) -> Path | None:
        """Directory of the cluster's run record, where it is on this machine."""
        run = (self.directory.scheduler() or {}).get("run")
        return Path(run) if run else None

    def scale(self, plan: ScalePlan, *, source: str) -> None:
        """Bring pools to the plan's counts."""
        answer = self.cluster.order(dict(plan.workers_by_tag), source=source)
        before: Mapping[str, int] = answer["before"]
        for tag, count in plan.workers_by_tag.items():
            if before[tag] != count:
                row = scaling_row(tag, before[tag], count, "scale", source)
                self.scaling_history.append(row)
        self.counts |= plan.workers_by_tag

    def close(self) -> None:
        """Disconnect; the cluster goes on."""
        cluster, self.cluster = self.cluster, None
        if cluster is not None:
            cluster.close()

    def delete(self) -> None:
        """End the cluster and everything that belongs to it."""
        self.close()
        if not end(self.directory.id):
            raise ClusterError("the cluster is gone already")
