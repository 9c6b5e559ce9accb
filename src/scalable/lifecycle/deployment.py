"""Wires a scheduler, its controller, a recorder and a manager together."""

from __future__ import annotations

import dataclasses
import logging
import time
from typing import Any

from scalable.errors import ClusterError
from scalable.lifecycle.creation import embedded_record
from scalable.lifecycle.scaling_rows import scaling_row
from scalable.liveness import identify_process
from scalable.planning import adaptive_bounds, expectations
from scalable.records import ClusterDirectory
from scalable.spec import DeploymentSpec, Plan, ScalePlan
from scalable.telemetry import RunDirectory

logger = logging.getLogger("scalable.lifecycle")

READY_POLL_S = 0.02


class Deployment:
    """A cluster in this process, from its start to its end.

    Parameters
    ----------
    provider
        Who builds, scales and closes it.
    spec
        What is asked for.
    run
        Where it is recorded, or None.

    Attributes
    ----------
    cluster
        The provider's cluster handle.
    counts
        Tag -> workers that were last asked for here.
    scaling_history
        Rows of ``scaling.jsonl``: every change of a wanted count, oldest first.
    """

    def __init__(self, provider: Any, spec: DeploymentSpec, run: RunDirectory | None) -> None:
        self.cluster: Any = None
        self.scaling_history: list[dict[str, Any]] = []
        self._provider = provider
        self._spec = spec
        self._run = run
        self._recorder: Any = None
        self.counts: dict[str, int] = {}
        self._source: tuple[str, str] | None = None
        self._directory: ClusterDirectory | None = None
        self._snapshots: Any = None

    def start(self, plan: Plan) -> None:
        """Build the cluster and bring its pools to the plan's counts.

        Where the provider says that its workers come soon (``ready_timeout_s``), it waits for them.

        Raises
        ------
        ClusterError
            When a pool could not start any of its workers; nothing is left behind then.
        """
        spec = self._spec
        if self._run is not None:
            spec = dataclasses.replace(spec, log_dir=str(self._run.path / "logs"))
        self._directory = embedded_record(spec)
        self.cluster = self._provider.build_cluster(spec)
        try:
            self._record()
            self._show()
            self.scale(plan.scale_plan, source="plan")
            timeout = getattr(self._provider, "ready_timeout_s", None)
            if timeout is not None:
                self._wait_for_first_workers(timeout)
            self._follow_load(plan)
        except BaseException:
            self.close()
            raise

    def _wait_for_first_workers(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            pools = self.cluster.pools
            for tag, pool in pools.items():
                if pool.reason is not None and not pool.running:
                    raise ClusterError(f"pool {tag!r} has no worker: {pool.reason}")
            if all(pool.running >= pool.wanted or pool.reason for pool in pools.values()):
                return
            time.sleep(READY_POLL_S)
        logger.warning("not every worker was there after %g s; they are still awaited", timeout)

    # The record ---------------------------------------------------------------------------------

    def _record(self) -> None:
        cluster, run = self.cluster, self._run
        if hasattr(cluster, "on_scaling"):
            cluster.on_scaling(self._scaled)
        if run is None:
            return
        scheduler: Any = getattr(cluster, "scheduler", None)
        if not hasattr(scheduler, "add_plugin"):
            logger.warning(
                "the scheduler of cluster %s is not in this process: its tasks are not recorded",
                cluster.name,
            )
            return
        from scalable.scheduler.recorder import Recorder

        tags = self._spec.tags

        async def install() -> Any:
            recorder = Recorder(scheduler, run, tags)
            scheduler.add_plugin(recorder)
            recorder.start_flushing()
            return recorder

        self._recorder = cluster.sync(install)
        if hasattr(cluster, "on_event"):
            cluster.on_event(self._recorder.event)

    def _show(self) -> None:
        """Let other shells see this cluster, for as long as it lives."""
        controller = getattr(self.cluster, "controller", None)
        if self._directory is None or controller is None:
            return
        said: dict[str, Any] = {"address": self.cluster.scheduler_address}
        if self._run is not None:
            said |= {"run": str(self._run.path), "log_dir": str(self._run.path / "logs")}
        self._directory.write_scheduler({**identify_process(), **said})
        from scalable.lifecycle.snapshots import Snapshots

        self._snapshots = Snapshots(self._directory, controller)
        controller.on_change = self._snapshots.changed

    def _scaled(self, tag: str, before: int, after: int, reason: str, source: str) -> None:
        # A provider scales for whoever asked us to, and does not know for whom.
        if source == "manual" and self._source is not None:
            source, reason = self._source
        row = scaling_row(tag, before, after, reason, source)
        self.scaling_history.append(row)
        if self._run is not None:
            self._run.append("scaling", row)

    # Changes ------------------------------------------------------------------------------------

    @property
    def wanted(self) -> dict[str, int]:
        """Tag -> workers that are wanted now."""
        pools = getattr(self.cluster, "pools", {})
        return self.counts | {tag: pool.wanted for tag, pool in pools.items()}

    def scale(self, plan: ScalePlan, *, source: str, reason: str = "scale") -> None:
        """Bring pools to the plan's counts, through the provider; the record says who and why."""
        self._source = source, reason
        try:
            self._provider.scale(self.cluster, plan)
        finally:
            self._source = None
        if not hasattr(self.cluster, "on_scaling"):
            for tag, count in plan.workers_by_tag.items():
                before = self.counts.get(tag, 0)
                if before != count:
                    self._scaled(tag, before, count, reason, source)
        self.counts |= plan.workers_by_tag

    def _follow_load(self, plan: Plan) -> None:
        """Let the pools of an adaptive target follow their load."""
        bounds = adaptive_bounds(self._spec)
        if not bounds.pools:
            return
        controller = getattr(self.cluster, "controller", None)
        if controller is None:
            logger.warning(
                "the pools of cluster %s keep their counts: its provider's clusters do not adapt",
                self.cluster.name,
            )
            return
        controller.adaptation.follow(
            {tag: (own.minimum, own.maximum) for tag, own in bounds.pools.items()},
            maximum=bounds.maximum,
            expectations=expectations(self._spec, plan),
            objective=plan.objective,
            policy=plan.policy,
        )

    def close(self) -> None:
        """End the cluster; ending it twice is harmless."""
        cluster, self.cluster = self.cluster, None
        if cluster is None:
            return
        recorder, self._recorder = self._recorder, None

        async def stop() -> None:
            recorder.stop()

        try:
            if recorder is not None:
                cluster.sync(stop)
        finally:
            self._provider.close(cluster)
            if self._snapshots is not None:
                self._snapshots.close()
            if self._directory is not None:
                self._directory.remove()
