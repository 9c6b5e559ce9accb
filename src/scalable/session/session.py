"""The session: cluster, client and run record of one request, from the user's side."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from scalable import settings
from scalable.errors import ClusterError, RunError
from scalable.session.ending import (
    closed_at_exit,
    no_longer_closed_at_exit,
    warn_of_unfinished,
)
from scalable.session.planned import Planned
from scalable.session.request import Request
from scalable.spec import Diagnostic, Plan, ScalePlan

if TYPE_CHECKING:
    from pathlib import Path

    from scalable.client.client import ScalableClient
    from scalable.lifecycle import AttachedDeployment, Deployment, SessionRecord
    from scalable.lifecycle.creation import DetachOptions
    from scalable.records import ClusterDirectory
    from scalable.scaling import ScaleDecision

logger = logging.getLogger("scalable.session")


class ScalableSession(Planned):
    """A workflow on one target of a manifest: its plan, its cluster, its client, its record.

    Make one with :meth:`from_yaml` or :meth:`local`. As a context manager it yields the client, and
    ends everything that it started.

    Parameters
    ----------
    request
        The request.

    Examples
    --------
    >>> with ScalableSession.from_yaml("scalable.yaml", target="local") as client:  # doctest: +SKIP
    ...     futures = [client.submit(run, s, tag="demeter") for s in scenarios]
    ...     results = client.gather(futures)
    """

    def __init__(self, request: Request) -> None:
        super().__init__(request)
        self._deployment: Deployment | AttachedDeployment | None = None
        self._attached: AttachedDeployment | None = None
        self._client: ScalableClient | None = None
        self._record: SessionRecord | None = None
        self._scaled: Deployment | AttachedDeployment | None = None
        self._process = os.getpid()

    # Making one ---------------------------------------------------------------------------------

    @classmethod
    def from_yaml(
        cls, path: str | os.PathLike[str] | None = None, target: str | None = None
    ) -> Self:
        """Open a session on a manifest.

        Parameters
        ----------
        path
            YAML or TOML file; by default SCALABLE_MANIFEST, then ``scalable.yaml``.
        target
            Name of the target; by default SCALABLE_TARGET, then the target in whose batch system
            this process is a job, then ``local``, then the only one.

        Raises
        ------
        ManifestError
            With every fault of the file, or the targets to choose from.
        """
        return cls(Request.read(path, target))

    @classmethod
    def local(
        cls,
        pools: Mapping[str, int | Mapping[str, Any]],
        *,
        processes: bool = False,
        threads_per_worker: int = 1,
        project: str = "local",
    ) -> Self:
        """Open a session on this machine without a manifest.

        Parameters
        ----------
        pools
            Tag -> number of workers, or tag -> component as in a manifest.
        processes
            Whether each worker is a process of its own.
        threads_per_worker
            Number of calls that one worker runs at the same time.
        project
            Name of the project in records.

        Raises
        ------
        ManifestError
            With every fault of the pools.
        """
        from scalable.session.local_pools import local_request

        return cls(
            local_request(
                pools,
                processes=processes,
                threads_per_worker=threads_per_worker,
                project=project,
            )
        )

    @classmethod
    def attach(cls, name: str) -> Self:
        """Open a session on a running cluster, with the manifest that the cluster was made from.

        Closing the session only disconnects; :meth:`delete` ends the cluster.

        Parameters
        ----------
        name
            Name of the cluster, ``provider/name``, its id, or the beginning of the id.

        Raises
        ------
        ClusterError
            When no cluster or several clusters match, or the cluster does not answer.
        """
        from scalable.manifest import Manifest
        from scalable.providers.registry import option_models
        from scalable.records import find

        directory = find(name)
        target = directory.record().target
        file = directory.path / "manifest.yaml"
        manifest = Manifest.load(file, option_models(), target=target)
        session = cls(Request(manifest.resolve(target), manifest))
        session._attach(directory)
        return session

    def _attach(self, directory: ClusterDirectory) -> ScalableClient:
        from scalable.lifecycle import AttachedDeployment
        from scalable.lifecycle.record import announce_run

        logger.debug("attaching to cluster %s at %s", directory.id, directory.path)
        attached = AttachedDeployment(directory)
        self._attached = self._deployment = self._scaled = attached
        closed_at_exit(self._close)
        announce_run(attached.run_path)
        try:
            self._client = self._connect()
        except BaseException:
            self._close(None)
            raise
        return self._client

    # Running ------------------------------------------------------------------------------------

    def start(
        self,
        plan: Plan | None = None,
        *,
        detach: bool = False,
        name: str | None = None,
        timeout_s: float = 600.0,
    ) -> ScalableClient:
        """Build the cluster, bring its pools to the plan's counts, and connect.

        Parameters
        ----------
        plan
            Counts of workers; by default those of :meth:`plan`. The pools of a running session are
            changed to them.
        detach
            Start scheduler and workers in processes of their own. They keep running after this
            process ends, until :meth:`delete`, ``scalable down``, or the idle timeout. A cluster
            of that name that is already running is brought to the plan's counts.
        name
            Name of a detached cluster; by default made of the project and the target.
        timeout_s
            Seconds to wait for the first worker of each pool of a detached cluster.

        Returns
        -------
        ScalableClient
            The same client each time while the session runs.
        """
        if self._client is not None:
            if plan is not None and self._deployment is not None:
                self._deployment.scale(plan.scale_plan, source="plan")
            return self._client
        if (running := os.environ.get(settings.CLUSTER)) and not detach:
            from scalable.records import find

            return self._attach(find(running))
        if detach:
            return self._start_detached(plan, name, timeout_s)
        if name is not None:
            raise ClusterError("only a detached cluster has a name", hint="add detach=True")
        return self._start_here(plan)

    def _start_here(self, plan: Plan | None) -> ScalableClient:
        """Start a cluster that lives in this process."""
        request = self._request
        warnings = request.require_valid().warnings
        request.require_clusters()
        # Programs of the provider load their modules while this process plans and loads its own.
        with ExitStack() as unused:
            if (prepare := getattr(request.provider, "prepare", None)) is not None:
                unused.callback(prepare(self.spec))
            return self._start_planned(plan or self.plan(), warnings)

    def _start_planned(self, plan: Plan, warnings: Iterable[Diagnostic]) -> ScalableClient:
        request = self._request
        for warning in warnings:
            logger.warning("%s", warning.render())
        from scalable.lifecycle import Deployment, SessionRecord

        if settings.telemetry_enabled():
            manifest_yaml = request.resolved.to_yaml()
            self._record = SessionRecord.open(self.spec, plan, manifest_yaml=manifest_yaml)
        run = None if self._record is None else self._record.run
        logger.debug("starting %r here; run record: %s", self.target, run and run.path)
        self._deployment = self._scaled = Deployment(request.provider, self.spec, run)
        closed_at_exit(self._close)
        try:
            self._deployment.start(plan)
            self._client = self._connect()
        except BaseException as error:
            self._close(error)
            raise
        return self._client

    def _start_detached(
        self, plan: Plan | None, name: str | None, timeout_s: float
    ) -> ScalableClient:
        from scalable.session.detached import use_or_create

        plan = plan or self.plan()
        directory, created = use_or_create(self._request, plan, name, timeout_s)
        client = self._attach(directory)
        if not created:
            assert self._deployment is not None
            self._deployment.scale(plan.scale_plan, source="plan")
        return client

    def create(self, plan: Plan, options: DetachOptions) -> ClusterDirectory:
        """Start a detached cluster, and return before it is ready.

        Parameters and errors are those of :func:`scalable.session.detached.create_cluster`.
        """
        from scalable.session.detached import create_cluster

        return create_cluster(self._request, plan, options)

    def manage(
        self, cluster: str, manager: str, *, limits: Mapping[str, int], priority: int = 0
    ) -> int:
        """Provision workers of this target for a running cluster, until told to leave.

        Parameters and errors are those of :func:`scalable.session.detached.manage`.
        """
        from scalable.session.detached import manage

        return manage(self._request, cluster, manager, limits=limits, priority=priority)

    def delete(self) -> None:
        """End the detached cluster that this session is attached to, for all its users."""
        attached = self._attached
        if attached is None:
            raise ClusterError("this session has no detached cluster", hint="close() ends it")
        self.close()
        attached.delete()

    def _connect(self) -> ScalableClient:
        from scalable.client.client import ScalableClient

        labels: dict[str, list[str]] = {}
        for tag, component in self.spec.components.items():
            for label in component.tags:
                labels.setdefault(label, []).append(tag)
        client = ScalableClient(
            self.cluster,
            tasks={task.name: task.component for task in self.spec.tasks.values()},
            labels=labels,
            tags=self.spec.tags,
        )
        if self._attached is not None:
            client.listen()
        return client

    @property
    def client(self) -> ScalableClient:
        """The client of the running session."""
        if self._client is None:
            raise ClusterError("the session is not running", hint="call session.start() first")
        return self._client

    @property
    def cluster(self) -> Any:
        """The provider's cluster handle."""
        cluster = self._running().cluster
        if cluster is None:
            raise ClusterError("the session is not running", hint="call session.start() first")
        return cluster

    @property
    def run_path(self) -> Path | None:
        """Directory of the run's record, or None without telemetry or before the start."""
        if self._attached is not None:
            return self._attached.run_path
        return None if self._record is None else self._record.run.path

    @property
    def scaling_history(self) -> list[dict[str, Any]]:
        """Every change of a wanted count, oldest first; also after the end."""
        return [] if self._scaled is None else list(self._scaled.scaling_history)

    def scale(self, tag: str | Mapping[str, int], n: int | None = None) -> None:
        """Set how many workers of a tag are wanted; the other pools stay as they are.

        Parameters
        ----------
        tag
            The pool, or a mapping of tags to counts.
        n
            Absolute count; 0 empties the pool.

        Raises
        ------
        ClusterError
            When the manifest has no such component, or a count is not a whole number >= 0.
        """
        from scalable.session.counts import checked_counts, warn_of_excess

        counts = checked_counts(self.spec, tag if isinstance(tag, Mapping) else {tag: n})
        deployment = self._running()
        warn_of_excess(self.spec, deployment.counts | counts)
        resources = {name: self.spec.resources(name) for name in counts}
        deployment.scale(ScalePlan(counts, resources), source="manual")

    def apply(self, decision: ScaleDecision) -> None:
        """Carry out a scaler's decision, on the pools that it names alone.

        Its changes are relative to the counts wanted now. The manifest's bounds limit them: those
        of a component's ``workers``, and the target's for all pools together.

        Parameters
        ----------
        decision
            Decision of an :class:`~scalable.AdaptiveScaler`, for example.

        Raises
        ------
        ClusterError
            When it names a component that the manifest does not have; nothing changes then.
        """
        from scalable.session.counts import decided_counts

        deployment = self._running()
        counts, reason = decided_counts(self.spec, deployment.wanted, decision)
        if counts:
            resources = {tag: self.spec.resources(tag) for tag in counts}
            plan = ScalePlan(counts, resources)
            deployment.scale(plan, source="decision", reason=reason)

    def _running(self) -> Deployment | AttachedDeployment:
        if self._deployment is None:
            raise ClusterError("the session is not running", hint="call session.start() first")
        return self._deployment

    def record_artifact(
        self,
        path: str | os.PathLike[str],
        *,
        name: str | None = None,
        kind: str = "file",
        **metadata: Any,
    ) -> None:
        """Record a result of the workflow in the run's record.

        Parameters
        ----------
        path
            File or directory, or a URL.
        name
            By default the last part of the path.
        kind
            Kind of result: ``"file"``, ``"table"``, ``"plot"``, ...
        **metadata
            Further facts about it, as JSON values.
        """
        if self._record is not None:
            self._record.artifact(path, name=name, kind=kind, metadata=metadata)
        elif self._deployment is None:
            raise RunError("no run is being recorded", hint="call session.start() first")

    # Ending -------------------------------------------------------------------------------------

    def close(self) -> None:
        """End workers, scheduler and record. Closing twice is harmless."""
        self._close(None)

    def _close(self, error: BaseException | None) -> None:
        no_longer_closed_at_exit(self._close)
        if os.getpid() != self._process:
            return  # a fork of the process that the session belongs to
        client, self._client = self._client, None
        deployment, self._deployment = self._deployment, None
        self._attached = None
        if error is None and client is not None:
            warn_of_unfinished(client)
        # Each is ended even if another fails: the client first, the record last.
        with ExitStack() as ending:
            if self._record is not None:
                ending.callback(self._record.close, error)
            if deployment is not None:
                ending.callback(deployment.close)
            if client is not None:
                ending.callback(client.close)

    def __enter__(self) -> ScalableClient:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close(error)

    def __repr__(self) -> str:
        state = "running" if self._client is not None else "not running"
        return f"<ScalableSession {self.spec.project_name!r} on {self.target!r}: {state}>"
