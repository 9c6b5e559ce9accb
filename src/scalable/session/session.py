"""`ScalableSession`: the cluster, the client and the run record of one workflow."""

from __future__ import annotations

import gc
import logging
import os
import re
import sys
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from scalable import settings
from scalable.errors import ClusterError, RunError, ScalableError
from scalable.files import working_directory
from scalable.harmless import harmless
from scalable.manifest.resolved import ResolvedManifest
from scalable.model import (
    ComponentSpec,
    DeploymentSpec,
    Diagnostic,
    Plan,
    ScalePlan,
    ValidationReport,
    WorkerRange,
    names,
)
from scalable.model.cache_settings import CacheSettings, Keeping
from scalable.model.components import MOST_WORKERS
from scalable.model.overview import Overview
from scalable.providers.local.traits import DEFAULTS
from scalable.providers.registry import provider_traits
from scalable.session.exits import closed_at_exit, interrupts_later, no_longer_closed_at_exit
from scalable.session.request import Request
from scalable.storage import Storage, no_storage
from scalable.units import counted, seconds_of

if TYPE_CHECKING:
    from scalable.client.client import ScalableClient
    from scalable.client.task_output import NotebookStreams
    from scalable.clusters.connecting import AttachedDeployment
    from scalable.clusters.creation import DetachOptions
    from scalable.clusters.deployment import Deployment
    from scalable.clusters.record import SessionRecord
    from scalable.manifest import Manifest
    from scalable.records import ClusterDirectory
    from scalable.runs.report.run_report import RunReport
    from scalable.scaling import ScaleDecision
    from scalable.session.progress import Progress

logger = logging.getLogger("scalable.session")


class ScalableSession:
    """A workflow on one target of a manifest: plan, cluster, client and run record.

    Create a session with :meth:`from_yaml`, :meth:`local` or :meth:`attach`. Its client is
    :attr:`client`. As a context manager, a session starts, yields its client, and at the end closes
    everything that it started.

    Parameters
    ----------
    request
        The manifest with its chosen target.

    Examples
    --------
    >>> with ScalableSession.from_yaml("scalable.yaml", target="local") as client:  # doctest: +SKIP
    ...     futures = [client.submit(run, s, tag="demeter") for s in scenarios]
    ...     results = client.gather(futures)
    >>> session = ScalableSession.local({"demeter": 1})  # doctest: +SKIP
    >>> with session:  # doctest: +SKIP
    ...     session.scale("demeter", 2)
    ...     future = session.client.submit(run, "low", tag="demeter")
    """

    def __init__(self, request: Request) -> None:
        self._request = request
        self._run_plan: str | None = None
        self._to_run = ExitStack()
        self._deployment: Deployment | AttachedDeployment | None = None
        self._attached: AttachedDeployment | None = None
        self._client: ScalableClient | None = None
        self._record: SessionRecord | None = None
        self._scaled: Deployment | AttachedDeployment | None = None
        self._process = os.getpid()
        self._shows_output = True
        self._is_synchronous = False
        self._streams: NotebookStreams | None = None

    # Creation -----------------------------------------------------------------------------------

    @classmethod
    def from_yaml(
        cls,
        path: str | os.PathLike[str] | None = None,
        target: str | None = None,
        *,
        synchronous: bool = False,
        show_output: bool = True,
    ) -> Self:
        """Return a session for a manifest, without starting anything.

        Parameters
        ----------
        path
            YAML or TOML file. The default is the variable SCALABLE_MANIFEST, then
            ``scalable.yaml``.
        target
            Name of the target. The default is the first of these that exists: the variable
            SCALABLE_TARGET, the target of the batch system that runs this process as a job,
            ``local``, the only target.
        synchronous
            Run each task in this thread when it is submitted, on any target, so that a debugger can
            be used. Images, variables and limits of components are not applied.
        show_output
            Whether to show the output of tasks if the cluster stops with the session: in a notebook
            in the cell that waits for tasks, otherwise in the terminal, after the tag in brackets.

        Raises
        ------
        ManifestError
            When the file has errors, which are listed, or no target is chosen. Then all targets are
            listed.
        """
        session = cls(Request.read(path, target))
        session._run_plan = os.environ.get(settings.RUN_PLAN)
        session._shows_output = show_output
        session._is_synchronous = synchronous or settings.synchronous()
        return session

    @classmethod
    def local(
        cls,
        pools: Mapping[str, int | Mapping[str, Any]],
        *,
        processes: bool = False,
        threads_per_worker: int = 1,
        project: str = "local",
        dashboard_address: str | None = None,
        synchronous: bool = False,
        show_output: bool = True,
    ) -> Self:
        """Return a session on this machine without a manifest, without starting anything.

        Parameters
        ----------
        pools
            Number of workers by tag, or component, as in a manifest, by tag.
        processes
            Run each worker in a process of its own.
        threads_per_worker
            Number of tasks that one worker runs at the same time.
        project
            Name of the project in records.
        dashboard_address
            Address of the dashboard, such as ``":8787"``. By default, there is no dashboard.
        synchronous, show_output
            As in :meth:`from_yaml`.

        Raises
        ------
        ManifestError
            When the pools have errors; the exception lists all of them.
        """
        options: dict[str, Any] = {
            "threads_per_worker": threads_per_worker,
            "processes": processes,
        }
        if dashboard_address is not None:
            options["dashboard_address"] = dashboard_address
        session = cls(local_request(pools, project, **options))
        session._shows_output = show_output
        session._is_synchronous = synchronous or settings.synchronous()
        return session

    @classmethod
    def attach(cls, name: str) -> Self:
        """Open a session on a running cluster, with the manifest that it was created from.

        Closing the session only disconnects. :meth:`delete` deletes the cluster.

        Parameters
        ----------
        name
            Name of the cluster, ``provider/name``, its id, or a prefix of the id.

        Raises
        ------
        ClusterError
            When no cluster or several clusters match, or the cluster does not respond.
        """
        from scalable.manifest import Manifest
        from scalable.providers.registry import option_models
        from scalable.records import find

        directory = find(name)
        record = directory.record()
        target = record.target
        file = directory.path / "manifest.yaml"
        manifest = Manifest.load(file, option_models(), target=target)
        resolved = manifest.resolve(target).in_directory(record.workflow_dir)
        session = cls(Request(resolved, manifest))
        session._attach(directory)
        return session

    def _attach(self, directory: ClusterDirectory) -> ScalableClient:
        from scalable.clusters.connecting import AttachedDeployment
        from scalable.clusters.record import announce_run
        from scalable.session.progress import shown_to_run

        logger.debug("attaching to cluster %s at %s", directory.id, directory.path)
        attached = AttachedDeployment(directory)
        self._attached = self._deployment = self._scaled = attached
        closed_at_exit(self._close)
        announce_run(attached.run_path)
        self._to_run = shown_to_run(self._present)
        try:
            self._client = self._connect()
        except BaseException:
            self._close(None)
            raise
        return self._client

    # The request, and plans for it ----------------------------------------------------------------

    @property
    def spec(self) -> DeploymentSpec:
        """`DeploymentSpec`: the request to the provider."""
        return self._request.spec

    @property
    def target(self) -> str:
        """Name of the target."""
        return self._request.target

    @property
    def storage(self) -> Storage:
        """Storage of the project's results, which tasks can take as an argument.

        Inside a task, :func:`scalable.current_storage` returns the same.

        Raises
        ------
        ManifestError
            When the manifest has no ``default_storage``.
        """
        url = self.spec.storage_url
        if url is None:
            raise no_storage()
        return Storage(url)

    def validate(self) -> ValidationReport:
        """Check worker counts against their bounds, and run the provider's offline checks."""
        return self._request.validate()

    def check(self) -> ValidationReport:
        """Check against the target's live state, for example in its batch system. Starts nothing.

        Raises
        ------
        NotImplementedError
            When the provider has no live check.
        ProviderError
            When the target does not respond.
        """
        return self._request.check()

    def scripts(self) -> Mapping[str, str]:
        """Return the script that starts a worker, by tag.

        Raises
        ------
        NotImplementedError
            When the provider does not submit scripts.
        """
        return self._request.scripts()

    def plan(
        self,
        dry_run: bool = False,
        objective: str | None = None,
        policy: str | None = None,
        *,
        deadline: str | float | None = None,
        budget: float | None = None,
    ) -> Plan:
        """Predict the run's workers, time and cost from the manifest and from earlier runs.

        Parameters
        ----------
        dry_run
            Has no effect: planning only reads files.
        objective
            ``"minimize cost"``: the smallest number of workers that meets the deadline; ``"minimize
            time"``: the largest number that still shortens the run; ``"balance"``: a number between
            the two. None: the cheapest counts within a given deadline, or else the quickest within
            a given budget, or else the counts of the manifest.
        policy
            ``"safe"`` (the default with an objective): with 20 % headroom; ``"aggressive"``:
            without headroom; ``"manual"``: the counts of the manifest.
        deadline
            Longest duration of the run, in seconds or as a string such as ``"2h"``; by default
            the target's walltime.
        budget
            Maximum cost of the run, in the currency of the target's prices.

        Raises
        ------
        ManifestError
            When the request is not valid.
        PlanError
            When no counts within the bounds meet the deadline or the budget.
        NotImplementedError
            For any other objective.
        """
        del dry_run  # nothing here writes or contacts anything
        return self._request.plan(objective, policy, deadline=deadline, budget=budget)

    def create(self, plan: Plan, options: DetachOptions) -> ClusterDirectory:
        """Start a detached cluster, and return before it is ready.

        For parameters and errors see :func:`scalable.session.detached.create_cluster`.
        """
        from scalable.session.detached import create_cluster

        return create_cluster(self._request, plan, options)

    def manage(self, cluster: str, manager: str, **options: Any) -> int:
        """Run a manager that starts workers on this target for a running cluster.

        For parameters and errors see :func:`scalable.session.detached.manage`.
        """
        from scalable.session.detached import manage

        return manage(self._request, cluster, manager, **options)

    def _given(self, plan: Plan | str | os.PathLike[str] | None) -> Plan | None:
        """Return the checked plan of ``scalable run``, or else the given plan, or None."""
        if self._run_plan is not None:
            if plan is not None:
                logger.warning("the plan of `scalable run` is started, not the script's own plan")
            plan = self._run_plan
        return None if plan is None else self._checked(plan)

    def _checked(self, plan: Plan | str | os.PathLike[str]) -> Plan:
        """Return an existing plan after checking that it fits the manifest."""
        from scalable.session.plan_files import checked_plan, read_plan

        if isinstance(plan, Plan):
            return checked_plan(self._request, plan)
        source = "the plan of `scalable run`" if plan == self._run_plan else f"plan {plan}"
        return checked_plan(self._request, read_plan(plan), source)

    # Running ------------------------------------------------------------------------------------

    def start(
        self,
        plan: Plan | str | os.PathLike[str] | None = None,
        *,
        detach: bool = False,
        name: str | None = None,
        timeout_s: str | float = 600.0,
    ) -> ScalableClient:
        """Start the cluster with the plan's numbers of workers, and return a connected client.

        Parameters
        ----------
        plan
            Plan, or path of a plan that ``plan.save`` wrote. The default is the result of
            :meth:`plan`. If the session already runs, its pools are scaled to the plan's numbers. A
            plan given to ``scalable run`` takes precedence.
        detach
            Start scheduler and workers in processes of their own. They keep running after this
            process exits, until :meth:`delete`, ``scalable down``, or the idle timeout. A running
            cluster with this name is scaled to the plan's numbers of workers.
        name
            Name of a detached cluster. The default consists of the names of project and target.
        timeout_s
            Time to wait for the first worker of each pool of a detached cluster, in seconds or as a
            string such as ``"10 min"``.

        Returns
        -------
        ScalableClient
            The same client each time while the session runs.

        Raises
        ------
        PlanError
            When the manifest has changed since the plan was made.
        """
        try:
            limit_s = seconds_of("timeout_s", timeout_s)
            return self._start(plan, detach=detach, name=name, timeout_s=limit_s)
        except ScalableError as error:
            if sys.excepthook is sys.__excepthook__ and not settings.debug():
                sys.excepthook = _tell
            error.alone = True
            raise
        except KeyboardInterrupt:
            raise KeyboardInterrupt from None  # without the frames of what it has interrupted

    def _start(
        self,
        plan: Plan | str | os.PathLike[str] | None,
        *,
        detach: bool,
        name: str | None,
        timeout_s: float,
    ) -> ScalableClient:
        if self._client is not None:
            if plan is not None and self._deployment is not None:
                self._deployment.scale(self._checked(plan).scale_plan, source="plan")
            return self._client
        if self._is_synchronous:
            if detach:
                raise ClusterError(
                    "synchronous=True runs tasks in this process, so it excludes a detached cluster"
                )
            self._request, plan = synchronous(self._request), None
        elif (running := os.environ.get(settings.CLUSTER)) and not detach:
            from scalable.records import find

            return self._attach(find(running))
        plan = self._given(plan)
        if detach:
            return self._start_detached(plan, name, timeout_s)
        if name is not None:
            raise ClusterError("only a detached cluster has a name", hint="add detach=True")
        return self._start_here(plan)

    def _start_here(self, plan: Plan | None) -> ScalableClient:
        """Start a cluster whose scheduler runs in this process."""
        refuse_start()
        request = self._request
        warnings = request.require_valid().warnings
        request.require_clusters()
        # Programs of the provider load their modules while this process plans and loads its own.
        with ExitStack() as unused:
            if (prepare := getattr(request.provider, "prepare", None)) is not None:
                unused.callback(prepare(self.spec))
            return self._start_planned(plan or self.plan(), warnings)

    def _start_planned(self, plan: Plan, warnings: Iterable[Diagnostic]) -> ScalableClient:
        _load_engine()
        from scalable.client.own_code import note_code

        note_code()
        request = self._request
        for warning in warnings:
            logger.warning("%s", warning.render())
        from scalable.client.task_output import NotebookStreams, in_notebook
        from scalable.clusters.deployment import Deployment
        from scalable.clusters.record import SessionRecord
        from scalable.session.progress import shown_to_run

        warn_of_older(self)
        if settings.telemetry_enabled():
            manifest_yaml = request.resolved.to_yaml()
            try:
                self._record = SessionRecord.open(self.spec, plan, manifest_yaml=manifest_yaml)
            except RunError as error:
                if os.environ.get(settings.RUNS_DIR):  # the user asked for the record
                    raise
                logger.warning("nothing is recorded: %s", error)
        try:  # from here on an interrupt has to be recorded
            run = None if self._record is None else self._record.run
            logger.debug("starting %r here; run record: %s", self.target, run and run.path)
            self._deployment = self._scaled = Deployment(request.provider, self.spec, run)
            closed_at_exit(self._close)
            _running.add(self)
            self._to_run = shown_to_run(self._present)
            self._deployment.start(plan)
            self._client = self._connect()
            if self._shows_output:
                self._client.show_output()
                if in_notebook() and self.spec.options.get("processes") is False:
                    self._streams = NotebookStreams()
        except BaseException as error:
            self._close(error)
            raise
        return self._client

    def _start_detached(
        self, plan: Plan | None, name: str | None, timeout_s: float
    ) -> ScalableClient:
        from scalable.client.own_code import note_code
        from scalable.session.detached import use_or_create

        note_code()
        plan = plan or self.plan()
        directory, created = use_or_create(self._request, plan, name, timeout_s)
        client = self._attach(directory)
        if not created:
            assert self._deployment is not None
            self._deployment.scale(plan.scale_plan, source="plan")
        return client

    def delete(self) -> None:
        """Delete the detached cluster that this session is attached to, for all its users."""
        attached = self._attached
        if attached is None:
            raise ClusterError(
                "this session has no detached cluster",
                hint="close() stops the session's own cluster",
            )
        self.close()
        attached.delete()

    def _connect(self) -> ScalableClient:
        from scalable.clusters.specs import keeping_of

        return connected_client(self.cluster, self.spec, keeping_of(self.spec, self.run_path))

    def sync_code(self) -> list[str]:
        """Upload the workflow's current files, as the client's ``sync_code`` does."""
        return self.client.sync_code()

    @property
    def client(self) -> ScalableClient:
        """`ScalableClient`: client of the running session. Raises ClusterError before the start."""
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
        """All changes of desired worker counts, oldest first, even after the session has closed."""
        return [] if self._scaled is None else list(self._scaled.scaling_history)

    def scale(self, tag: str | Mapping[str, int], n: int | None = None) -> None:
        """Set the desired number of workers of a tag, and leave other pools as they are.

        Parameters
        ----------
        tag
            Tag of the pool, or a mapping of tags to numbers of workers.
        n
            Absolute number of workers; 0 stops all workers of the pool.

        Raises
        ------
        ClusterError
            When the manifest has no such component, or a count is not from 0 to 100,000.
        """
        from scalable.session.plan_files import checked_counts, warn_of_excess

        counts = checked_counts(self.spec, tag if isinstance(tag, Mapping) else {tag: n})
        deployment = self._running()
        warn_of_excess(self.spec, deployment.counts | counts)
        resources = {name: self.spec.resources(name) for name in counts}
        deployment.scale(ScalePlan(counts, resources), source="manual")

    def apply(self, decision: ScaleDecision) -> None:
        """Apply a scaler's decision, and leave other pools as they are.

        The changes are relative to the current desired numbers of workers. The manifest limits the
        new numbers: by the ``workers`` of each component, and by the target's bounds for all pools
        together.

        Parameters
        ----------
        decision
            Decision of an :class:`~scalable.AdaptiveScaler`, for example.

        Raises
        ------
        ClusterError
            When the decision names a component that is not in the manifest. Nothing is changed.
        """
        from scalable.session.plan_files import decided_counts

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

    def logs(self, pool: str | None = None) -> dict[str, str]:
        """Return the output of the workers, including workers that have stopped.

        Parameters
        ----------
        pool
            Tag of a pool, to return only the output of its workers.

        Returns
        -------
        dict
            Output by worker name, at most the last megabyte of each. For workers that are threads
            of this process, it contains what tasks print and log in Python.

        Raises
        ------
        ClusterError
            When there is no such pool, or the session's run is not recorded.
        """
        from scalable.clusters.logs import log_files, read_log, run_logs

        if pool is not None and pool not in self.spec.tags:
            raise ClusterError(
                f"there is no pool {pool!r}; known pools: {', '.join(self.spec.tags)}"
            )
        if self._attached is not None:
            files = log_files(self._attached.directory, pool=pool)
        elif self.run_path is None:
            raise ClusterError("workers' output is in the run's record, but this run has none")
        else:
            files = run_logs(self.run_path, self.spec.options.get("logs"))
            files = [file for file in files if pool in (None, file.tag)]
        return {file.worker: read_log(file.path) for file in files}

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
            File or directory, or a URL, such as ``session.storage.url("maps/a.nc")``. Nothing is
            copied. The size of a URL's object is recorded if its store reports it within 5 s.
        name
            By default the last part of the path.
        kind
            Kind of result: ``"file"``, ``"table"``, ``"plot"``, ...
        **metadata
            Further facts about the result, as JSON values.
        """
        record = self._record or self._attached
        if record is not None:
            record.artifact(path, name=name, kind=kind, metadata=metadata)
        elif self._deployment is None:
            raise RunError("no run is being recorded", hint="call session.start() first")

    # The running cluster ------------------------------------------------------------------------

    def report(self) -> RunReport:
        """Return the report of the session's run so far, or of the finished run.

        ``print`` shows it as text, a notebook as HTML. Its ``save`` writes an HTML page.

        Raises
        ------
        RunError
            When the run is not recorded, or its record is unreadable or on another machine.
        """
        from scalable.runs.reading import read_run
        from scalable.runs.report.run_report import report_on

        path = self.run_path
        if path is None:
            raise RunError(
                "this session has no record of a run on this machine",
                hint="start the session first, without SCALABLE_TELEMETRY=0",
            )
        if self._deployment is not None:
            self._deployment.write_rows()
        return report_on(read_run(path))

    def status(self) -> dict[str, Any]:
        """Return the state of the cluster, its pools and managers, and its costs.

        Returns
        -------
        dict
            ``state`` and its ``reason``; ``pools`` (counts by tag); ``managers``; ``tasks``; and
            ``cost``, which is None if nothing has a price. Amounts are in ``cost["currency"]``:
            ``cost`` so far, its part ``idle`` for time without tasks, ``per_hour`` for the machines
            that run now; the same by ``pools`` and by ``managers``; ``budget`` and ``stage``.

        Raises
        ------
        ClusterError
            When the session is not running, or its provider's clusters have no such status.
        """
        return self._running().status()

    def set_budget(self, amount: float) -> None:
        """Set the total amount that the cluster may spend, counted from its start.

        Parameters
        ----------
        amount
            The new budget. Pools stop growing once 80 % of it is spent.

        Raises
        ------
        ClusterError
            When the amount is not valid, or the session is not running.
        """
        self._running().set_budget(amount)

    def overview(self) -> Overview:
        """Return the state of the cluster: pools, tasks by name, predicted finish, costs.

        ``scalable top``, the dashboard and :meth:`progress` show the same numbers.

        Raises
        ------
        ClusterError
            When the session is not running, or its provider's clusters have no overviews.
        """
        self._running()
        overview = self._present()
        if overview is None:
            raise ClusterError(
                f"the cluster on target {self.target!r} has no overviews",
                hint="session.status() and the client show what is known",
            )
        return overview

    def progress(self) -> Progress:
        """Return a display of the session's progress for a ``with`` block.

        Within the block, it counts the done, running, waiting and failed tasks of each name, and
        predicts the finish. On a terminal, it shows a table below the
        program's output; in a notebook, a table that is kept up to date; elsewhere, a line on
        standard error every ten seconds. Under ``scalable run``, which has its own display, it
        shows nothing. ``print`` shows the current state once.

        Raises
        ------
        ClusterError
            As :meth:`overview` does.

        Examples
        --------
        >>> with session.progress():  # doctest: +SKIP
        ...     results = client.gather(futures)
        """
        self.overview()
        from scalable.session.progress import Progress

        return Progress(self._present)

    def _present(self) -> Overview | None:
        from scalable.client.overviews import DisplayedCluster

        try:
            cluster = self._running().cluster
        except ClusterError:
            return None
        return cluster.overview() if isinstance(cluster, DisplayedCluster) else None

    def _state(self) -> str:
        try:
            self._running()
        except ClusterError:
            return "not running"
        return "running"

    def __repr__(self) -> str:
        project, state = self.spec.project_name, self._state()
        if state == "running":
            state = f"running as {str(self._running().cluster.name)!r}"
        return f"<ScalableSession {project!r} on {self.target!r}: {state}>"

    def _repr_html_(self) -> str:
        from scalable.views.notebooks import component_table, render_overview

        facts: list[tuple[str, Any]] = [
            ("Target", self.target),
            ("Provider", self.spec.provider_name),
        ]
        if (run := self.run_path) is not None:
            facts.append(("Run", run.name))
        state, overview, note = self._state(), None, ""
        if state == "running":
            try:
                overview = self._present()
            except (OSError, TimeoutError):
                note = "The scheduler does not answer: counts are not known."
        name = self.spec.project_name
        return render_overview(
            *("ScalableSession", name, state, overview),
            facts=facts,
            note=note,
            table=None if overview is not None else component_table(self.spec),
        )

    # Closing ------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close client, workers, scheduler and run record, or disconnect from a detached cluster.

        Closing twice is harmless.
        """
        self._close(None)

    def _close(self, error: BaseException | None) -> None:
        no_longer_closed_at_exit(self._close)
        _running.discard(self)
        if os.getpid() != self._process:
            return  # in a fork of the session's process
        self._to_run.close()
        client, self._client = self._client, None
        deployment, self._deployment = self._deployment, None
        self._attached = None
        if error is None and client is not None:
            warn_of_unfinished(client)
        # Each part is closed even if another part fails: first the client, last the record.
        with ExitStack() as ending:
            if client is not None:
                from scalable.client.task_output import display

                ending.callback(display.settle)  # what tasks printed last
            if self._streams is not None:
                ending.callback(self._streams.close)
                self._streams = None
            if self._record is not None:
                ending.callback(self._record.close, error)
            if deployment is not None:
                ending.callback(deployment.close)
            if client is not None:
                ending.callback(client.close)

    def __enter__(self) -> ScalableClient:
        return self.start()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._close(error)


# Clients ------------------------------------------------------------------------------------------


def connected_client(
    cluster: Any, spec: DeploymentSpec, keeping: Keeping | None = None
) -> ScalableClient:
    """Return a client that routes tasks by the manifest's names. Publish the session's storage."""
    from scalable.client.client import ScalableClient
    from scalable.protocol.operations import STORAGE

    client = ScalableClient(cluster, **client_options(spec, keeping))
    if spec.storage_url is not None:
        client.set_metadata(STORAGE, spec.storage_url)
    return client


def client_options(spec: DeploymentSpec, keeping: Keeping | None = None) -> dict[str, Any]:
    """Return the arguments of ``ScalableClient`` that come from the manifest."""
    labels: dict[str, list[str]] = {}
    for tag, component in spec.components.items():
        for label in component.tags:
            labels.setdefault(label, []).append(tag)
    tasks = {task.name: task.component for task in spec.tasks.values()}
    return {
        "tasks": tasks,
        "labels": labels,
        "tags": spec.tags,
        "remembering": CacheSettings.of(
            spec, keeping, images_here=provider_traits(spec.provider_name).on_this_machine
        ),
    }


def refuse_start() -> None:
    """Raise ClusterError if a new ``multiprocessing`` process is importing the user's script, or
    if gevent has replaced threads. Each such process would start the script's sessions again,
    endlessly, and an event loop in a thread of gevent takes each caller for its own.
    """
    gevent = sys.modules.get("gevent.monkey")
    if gevent is not None and gevent.is_module_patched("threading"):
        raise ClusterError(
            "gevent has replaced the threads of this process, and a session needs real ones",
            hint="start the session in a process without gevent's monkey.patch_all()",
        )
    process = sys.modules.get("multiprocessing.process")
    if process is not None and getattr(process.current_process(), "_inheriting", False):
        raise ClusterError(
            "the script starts a session while a multiprocessing child imports it",
            hint="move the script's code under: if __name__ == '__main__':",
        )


def _load_engine() -> None:
    """Import Dask and what a session needs of it, without collections: imports make no garbage."""
    collects = gc.isenabled()
    gc.disable()
    try:
        with interrupts_later():
            import scalable.client.client
            import scalable.clusters.deployment
            import scalable.manager.pool_cluster  # noqa: F401 - loaded for later use
    finally:
        if collects:
            gc.enable()


def _tell(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if not isinstance(error, ScalableError) or not error.alone or sys.stderr is None:
        sys.__excepthook__(kind, error, trace)
        return
    lines = [f"error: {error.message}"]
    lines += [diagnostic.render() for diagnostic in getattr(error, "diagnostics", ())]
    lines += [f"  hint: {error.hint}"] if error.hint else []
    sys.stderr.write(harmless("\n".join(lines)) + "\n")


# Ending -------------------------------------------------------------------------------------------

#: Sessions with a cluster of their own, which runs on if the script drops the session.
_running: set[ScalableSession] = set()


def warn_of_older(session: ScalableSession) -> None:
    """Warn in a notebook if another session on the same target is still running."""
    from scalable.client.task_output import in_notebook

    for other in list(_running) if in_notebook() else ():
        one, two = other.spec, session.spec
        if (one.project_name, one.target_name) == (two.project_name, two.target_name):
            logger.warning(
                "an older session on target %r is still running (%r), and keeps its workers "
                "until the kernel restarts; call session.close() before you start another one",
                session.target,
                other,
            )


def warn_of_unfinished(client: ScalableClient) -> None:
    """Warn if closing the session cancels unfinished tasks."""
    unfinished = client._unfinished_calls()  # noqa: SLF001 - not for users
    if unfinished:
        logger.warning(
            "the session closes with %s, cancelled now; gather results before it closes",
            counted(unfinished, "unfinished task"),
        )


# Synchronous sessions -----------------------------------------------------------------------------


#: Keys of components that workers in this thread do not have.
_OF_PROCESSES = ("image", "env", "secrets", "preload_script", "setup", "python")


def synchronous(request: Request) -> Request:
    """Return a request for one worker per pool whose tasks run in threads that wait for them."""
    spec = request.spec
    components = {
        tag: ComponentSpec(
            tag, cpus=c.cpus, memory=c.memory, gpus=c.gpus, slots=c.slots, tags=c.tags,
            workers=WorkerRange(1, 1),
        )
        for tag, c in spec.components.items()
    }  # fmt: skip
    for tag, written in spec.components.items():
        left_out = [name for name in _OF_PROCESSES if getattr(written, name)]
        if left_out:
            logger.warning(
                "component %r: %s is not applied to tasks that run synchronously",
                tag,
                ", ".join(left_out),
            )
    local = spec.provider_name == TARGET
    options = {**DEFAULTS, "processes": False, "synchronous": True}
    if local:
        options["threads_per_worker"] = spec.options["threads_per_worker"]
    return Request(
        replace(
            request.resolved,
            spec=replace(
                spec,
                provider_name=TARGET,
                components=components,
                options=options,
                written_options=frozenset(),
                adaptive=None,
                managers=(),
            ),
        )
    )


# Local pools --------------------------------------------------------------------------------------

TARGET = "local"


def local_request(
    pools: Mapping[str, int | Mapping[str, Any]], project: str, **options: Any
) -> Request:
    """Return the :class:`Request` that a manifest with these pools and options would give.
    Plain numbers of workers need no import of pydantic. Other pools may raise ManifestError.
    """
    data = {
        "version": 1,
        "project": {"name": project},
        "targets": {TARGET: {"provider": TARGET, **options}},
        "components": {
            tag: pool if isinstance(pool, Mapping) else {"workers": pool}
            for tag, pool in pools.items()
        },
    }
    if (
        pools
        and all(names.TAG.accepts(tag) and _is_count(pool) for tag, pool in pools.items())
        and isinstance(options["processes"], bool)
        and _is_count(options["threads_per_worker"])
        and options["threads_per_worker"] > 0
        and "dashboard_address" not in options
        and _is_name(project)
    ):
        return Request(_resolved(data))
    manifest = _checked(data)
    return Request(manifest.resolve(TARGET), manifest)


def _checked(data: Mapping[str, Any]) -> Manifest:
    from scalable.manifest import Manifest
    from scalable.providers.registry import option_models

    return Manifest.from_mapping(data, option_models())


def _resolved(data: Mapping[str, Any]) -> ResolvedManifest:
    counts = {tag: component["workers"] for tag, component in data["components"].items()}
    bounds = {tag: {"workers": {"minimum": n, "maximum": n}} for tag, n in counts.items()}
    data = {**data, "components": bounds}
    options = {key: v for key, v in data["targets"][TARGET].items() if key != "provider"}
    spec = DeploymentSpec(
        project_name=data["project"]["name"],
        target_name=TARGET,
        provider_name=TARGET,
        components={
            tag: ComponentSpec(name=tag, workers=WorkerRange(n, n)) for tag, n in counts.items()
        },
        options={**DEFAULTS, **options},
        written_options=frozenset(options),
        workflow_dir=str(working_directory()),
    )
    return ResolvedManifest(spec, data)


def _is_count(count: object) -> bool:
    return type(count) is int and 0 <= count <= MOST_WORKERS


def _is_name(project: object) -> bool:
    """Return whether a project's name needs no further check."""
    return names.PROJECT.accepts(project) and re.fullmatch(r"[\w .-]+", str(project)) is not None
