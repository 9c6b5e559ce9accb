"""An embedded cluster, which its user's process builds, records, scales and closes."""

from __future__ import annotations

import dataclasses
import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalable.client.overviews import DisplayedCluster
from scalable.clusters.record import cluster_record, put_on_record
from scalable.clusters.remote import RepeatedPull, StreamCopy
from scalable.clusters.scheduler_services import SchedulerServices
from scalable.clusters.specs import (
    keeping_of,
    remove_old_results,
    with_prices,
    worker_prices,
)
from scalable.errors import ClusterError
from scalable.model import ClusterRecord, DeploymentSpec, Plan, ScalePlan
from scalable.model.cache_settings import CacheSettings
from scalable.planning import adaptive_bounds
from scalable.protocol.pools import shown
from scalable.protocol.private_socket import PrivateSocket
from scalable.providers.registry import provider_traits
from scalable.records import ClusterDirectory
from scalable.runs.directory import RunDirectory
from scalable.runs.streams import LOGS, StoredRows

if TYPE_CHECKING:
    from scalable.scheduler.controller import Controller

logger = logging.getLogger("scalable.clusters")

READY_POLL_S = 0.02
#: Streams of a run that a remote scheduler writes.
COPIED = ("tasks", "workers", "resources", "failures", "scaling")


class Deployment:
    """Cluster in this process, from start to stop. ``counts`` are the last requested counts."""

    def __init__(self, provider: Any, spec: DeploymentSpec, run: RunDirectory | None) -> None:
        self.cluster: Any = None
        self._history: list[dict[str, Any]] = []
        self._copy: StreamCopy | None = None
        self._copier: RepeatedPull | None = None
        self._provider = provider
        self._spec = spec
        self._run = run
        self._records = False
        self._socket: PrivateSocket | None = None
        self.counts: dict[str, int] = {}
        self._source: tuple[str, str] | None = None
        self._directory: ClusterDirectory | None = None
        self._services: SchedulerServices

    def start(self, plan: Plan) -> None:
        """Build the cluster and scale it to the plan. ClusterError if a pool stays empty."""
        spec = self._spec
        if self._run is not None:
            spec = dataclasses.replace(spec, log_dir=str(self._run.path / LOGS))
            remove_old_results(spec, self._run.path)
        if provider_traits(spec.provider_name).remote:
            spec = with_prices(spec)
        record = embedded_record(spec, plan)
        self._directory = put_on_record(record)
        self._services = SchedulerServices(record, self._directory, self._run)
        try:
            self.cluster = self._provider.build_cluster(spec)
            if isinstance(self.cluster, DisplayedCluster) and hasattr(self.cluster, "scheduler"):
                self.cluster.name = record.name  # the name that other processes use
            self._record()
            self._count_costs()
            self._show()
            self.scale(plan.scale_plan, source="plan")
            timeout = getattr(self._provider, "ready_timeout_s", None)
            if timeout is not None:
                self._wait_for_first_workers(timeout)
            self._follow_load()
        except BaseException:
            self.close()
            raise

    def _wait_for_first_workers(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            pools = self.cluster.pools
            for tag, pool in pools.items():
                if pool.reason is not None and not pool.running:
                    raise ClusterError(f"{shown(tag)} has no worker: {pool.reason}")
            if all(pool.running >= pool.wanted or pool.reason for pool in pools.values()):
                return
            time.sleep(READY_POLL_S)
        logger.warning(
            "some workers have not connected after %g s; still waiting for them", timeout
        )

    # The record ---------------------------------------------------------------------------------

    def _record(self) -> None:
        cluster, run = self.cluster, self._run
        if hasattr(cluster, "on_scaling"):
            cluster.on_scaling(self._scaled)
        scheduler: Any = getattr(cluster, "scheduler", None)
        if scheduler is not None:
            self._services.describe(scheduler)
            keeping = keeping_of(self._spec, None if run is None else run.path)
            here = provider_traits(self._spec.provider_name).on_this_machine
            says = CacheSettings.of(self._spec, keeping, images_here=here)
            scheduler.remembering = says.to_message()
            if hasattr(scheduler, "retrying"):  # missing in other providers' schedulers
                scheduler.retrying.deployment = self._spec
        if run is None:
            return
        if hasattr(cluster, "run_files"):
            self._copy = StreamCopy(run.path, COPIED)
            self._copier = RepeatedPull(cluster, self._copy)
            return
        if not hasattr(scheduler, "add_plugin"):
            logger.warning(
                "the scheduler of cluster %s is not in this process: its tasks are not recorded",
                cluster.name,
            )
            return

        async def install() -> Any:
            return self._services.start_recorder(scheduler)

        recorder = cluster.sync(install)
        self._records = True
        if hasattr(cluster, "on_event"):
            cluster.on_event(recorder.event)

    def _count_costs(self) -> None:
        """Count the cluster's costs if its scheduler and its manager are in this process."""
        cluster = self.cluster
        controller = _controller_of(cluster)
        if controller is None:
            return

        async def begin() -> None:
            self._services.count_costs(controller, self._spec)
            cluster.manager.price(worker_prices(self._spec))

        cluster.sync(begin)

    def _show(self) -> None:
        """Make this cluster visible to other processes of the user while it runs."""
        controller = _controller_of(self.cluster)
        if self._directory is None or controller is None:
            return
        self._services.show_overviews(controller)
        self._services.announce(
            self.cluster.scheduler_address,
            dashboard=self.cluster.dashboard_link or None,
            socket=self._listen(),
        )
        self._services.show_status(controller)

    def _listen(self) -> Path | None:
        """Open a Unix socket through which the user's other processes can query the scheduler."""
        self._socket = PrivateSocket(self.cluster.scheduler.handlers)
        try:
            path: Path = self.cluster.sync(self._socket.start)
        except (OSError, ClusterError) as error:
            logger.info("other processes cannot query this session: %s", error)
            return None
        return path

    def _scaled(self, tag: str, before: int, after: int, reason: str, source: str) -> None:
        # A provider does not report the source of the change.
        if source == "manual" and self._source is not None:
            source, reason = self._source
        self._history.append(self._services.scaled(tag, before, after, reason, source))

    @property
    def scaling_history(self) -> list[dict[str, Any]]:
        """Rows of ``scaling.jsonl``: all changes of desired counts, oldest first."""
        if self._copy is not None and self._run is not None:
            if self._copier is not None:
                self._copier.pull()
            return list(StoredRows(self._run.path, "scaling"))
        return self._history

    # Changes ------------------------------------------------------------------------------------

    @property
    def wanted(self) -> dict[str, int]:
        pools = getattr(self.cluster, "pools", {})
        return self.counts | {tag: pool.wanted for tag, pool in pools.items()}

    def scale(self, plan: ScalePlan, *, source: str, reason: str = "scale") -> None:
        """Set pools to the plan's counts through the provider, and record source and reason."""
        self._source = source, reason
        manager: Any = getattr(self.cluster, "manager", None)
        usual = getattr(manager, "origin", None)
        if usual is not None:
            manager.origin = source, reason
        try:
            self._provider.scale(self.cluster, plan)
        finally:
            self._source = None
            if usual is not None:
                manager.origin = usual
        if not hasattr(self.cluster, "on_scaling") and self._copy is None:
            for tag, count in plan.workers_by_tag.items():
                before = self.counts.get(tag, 0)
                if before != count:
                    self._scaled(tag, before, count, reason, source)
        self.counts |= plan.workers_by_tag

    def status(self) -> dict[str, Any]:
        """Return state, pools, managers and costs. ClusterError if there is no controller."""
        if hasattr(self.cluster, "status_now"):  # its scheduler is elsewhere
            return dict(self.cluster.status_now())

        async def look() -> dict[str, Any]:
            return self._controller().status()

        return dict(self.cluster.sync(look))

    def set_budget(self, amount: float) -> None:
        """Set the budget of the cluster. Raises the errors of :meth:`status`."""
        if hasattr(self.cluster, "status_now"):
            self.cluster.set_budget(amount)
            return

        async def change() -> None:
            self._controller().spending.set_budget(amount)

        self.cluster.sync(change)

    def _controller(self) -> Controller:
        controller = _controller_of(self.cluster)
        if controller is None:
            raise ClusterError(
                f"provider {self._provider.name!r} does not track the costs of its clusters"
            )
        return controller

    def _follow_load(self) -> None:
        """Start scaling the pools with their load if the target is adaptive."""
        if not adaptive_bounds(self._spec).pools or getattr(self.cluster, "follows_load", False):
            return
        controller = _controller_of(self.cluster)
        if controller is None:
            logger.warning(
                "the pools of cluster %s keep their counts: its provider's clusters do not adapt",
                self.cluster.name,
            )
            return
        self._services.follow_load(controller)

    def write_rows(self) -> None:
        """Write the record's buffered rows, if this process records."""
        if self._records and self.cluster is not None:
            self.cluster.sync(self._services.write_rows)

    def close(self) -> None:
        """Stop the cluster. Idempotent."""
        cluster, self.cluster = self.cluster, None
        if cluster is None:
            self._forget()
            return

        async def stop() -> None:
            self._services.stop_recorder()

        copier, self._copier = self._copier, None
        try:
            if self._socket is not None:
                self._socket.close()
            if self._records:
                cluster.sync(stop)
            if copier is not None:
                copier.close()
        finally:
            if hasattr(self._provider, "close"):
                self._provider.close(cluster)
            else:
                cluster.close()
            self._services.stop_status()
            self._forget()

    def _forget(self) -> None:
        directory, self._directory = self._directory, None
        if directory is not None:
            directory.remove()


def _controller_of(cluster: Any) -> Controller | None:
    """Return the controller of a cluster, or None if this process does not run its scheduler."""
    return getattr(getattr(cluster, "manager", None), "controller", None)


def embedded_record(spec: DeploymentSpec, plan: Plan) -> ClusterRecord:
    """Return the record of a cluster whose scheduler runs in this process."""
    record = cluster_record(spec, plan)
    name = f"{record.name}-{record.id[:6]}"
    return dataclasses.replace(record, name=name, stage="made", embedded=True)
