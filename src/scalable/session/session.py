"""A session: manifest, target, cluster, client and run record, from the user's side."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import weakref
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from scalable import settings
from scalable.errors import ClusterError, ManifestError, NameTakenError, PlanError, RunError
from scalable.forecasting import gather, quoted_prices
from scalable.lifecycle import AttachedDeployment, Deployment, SessionRecord
from scalable.lifecycle.bounds import within_bounds
from scalable.lifecycle.creation import (
    Creation,
    DetachOptions,
    ManagerRequest,
    create,
)
from scalable.lifecycle.record import announce_run
from scalable.lifecycle.recording import default_name
from scalable.lifecycle.requests import (
    detached_manifest,
    manager_requests,
    refuse_threads,
    search_path,
)
from scalable.lifecycle.resuming import running_cluster
from scalable.lifecycle.waiting import wait_until_ready
from scalable.manifest import Manifest, ResolvedManifest, choose_target, read_targets
from scalable.planning import PlanRequest, conflicts, make_plan, notices, written_total
from scalable.providers.registry import get_provider, inside_job_of, option_models
from scalable.records import ClusterDirectory, find
from scalable.spec import DeploymentSpec, Plan, ScalePlan, ValidationReport
from scalable.telemetry import RunDirectory

if TYPE_CHECKING:
    from scalable.client.client import ScalableClient
    from scalable.scaling import ScaleDecision

logger = logging.getLogger("scalable.session")

_open_sessions: weakref.WeakSet[ScalableSession] = weakref.WeakSet()


class ScalableSession:
    """Runs a workflow on a target of a manifest.

    Use :meth:`from_yaml` or :meth:`local`. As a context manager it yields the client, and ends
    everything that it started.

    Examples
    --------
    >>> with ScalableSession.from_yaml("scalable.yaml", target="local") as client:  # doctest: +SKIP
    ...     futures = [client.submit(run, s, tag="demeter") for s in scenarios]
    ...     results = client.gather(futures)
    """

    def __init__(self, manifest: Manifest, target: str) -> None:
        self._manifest = manifest
        self._resolved: ResolvedManifest = manifest.resolve(target)
        self._provider = get_provider(self._resolved.spec.provider_name)
        self._deployment: Deployment | AttachedDeployment | None = None
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
            YAML or TOML; by default SCALABLE_MANIFEST, then ``scalable.yaml``.
        target
            By default SCALABLE_TARGET, then the target in whose batch system this process is
            a job, then ``local``, then the only one.

        Raises
        ------
        ManifestError
            With every fault of the file, or the targets to choose from.
        """
        models = option_models()
        file = settings.manifest_path(path)
        targets = read_targets(file)
        chosen = choose_target(targets, target, inside_job_of)
        manifest = Manifest.load(file, models, target=chosen)
        if chosen is None:
            raise ManifestError(
                f"which target? {file} has {', '.join(targets)}",
                hint=f"give target=, --target or {settings.TARGET}",
            )
        return cls(manifest, chosen)

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
            Tag -> workers, or tag -> component as in a manifest.
        processes
            Whether each worker is a process of its own.
        threads_per_worker
            Calls that one worker runs at once.
        project
            Name of the project in records.
        """
        components = {
            tag: dict(pool) if isinstance(pool, Mapping) else {"workers": pool}
            for tag, pool in pools.items()
        }
        target = {
            "provider": "local",
            "processes": processes,
            "threads_per_worker": threads_per_worker,
        }
        data = {
            "version": 1,
            "project": {"name": project},
            "targets": {"local": target},
            "components": components,
        }
        return cls(Manifest.from_mapping(data, option_models()), "local")

    @classmethod
    def attach(cls, name: str) -> Self:
        """Open a session on a cluster that runs already, with what its manifest says.

        Closing the session only disconnects; :meth:`delete` ends the cluster.

        Parameters
        ----------
        name
            Of the cluster; ``provider/name``, its id, or the beginning of that.

        Raises
        ------
        ClusterError
            When there is no such cluster, several are meant, or it does not answer.
        """
        directory = find(name)
        record = directory.record()
        file = directory.path / "manifest.yaml"
        session = cls(Manifest.load(file, option_models(), target=record.target), record.target)
        session._attach(directory)
        return session

    def _attach(self, directory: ClusterDirectory) -> ScalableClient:
        attachment = AttachedDeployment(directory)
        self._deployment = self._scaled = attachment
        _open_sessions.add(self)
        announce_run(attachment.run_path)
        try:
            self._client = self._connect()
        except BaseException:
            self._close(None)
            raise
        return self._client

    # Before it runs -----------------------------------------------------------------------------

    @property
    def spec(self) -> DeploymentSpec:
        """What is asked of the provider."""
        return self._resolved.spec

    @property
    def target(self) -> str:
        """Name of the target."""
        return self.spec.target_name

    def validate(self) -> ValidationReport:
        """Check the request, offline: counts against bounds, and what the provider checks."""
        report = ValidationReport()
        locate = self._resolved.locate
        report.extend(self._manifest.warnings)
        report.extend(locate(d) for d in notices(self.spec))
        report.extend(locate(d) for d in conflicts(self.spec))
        found = self._provider.validate(self.spec)
        report.extend(locate(d) for d in [*found.errors, *found.warnings])
        return report

    def check(self) -> ValidationReport:
        """Check the request against the place as it is now; nothing is started.

        Raises
        ------
        NotImplementedError
            When the provider has nothing to ask.
        ProviderError
            When the place does not answer.
        """
        if not hasattr(self._provider, "check"):
            raise NotImplementedError(
                f"target {self.target!r}: provider {self._provider.name!r} has no live check"
            )
        report = ValidationReport()
        found = self._provider.check(self.spec)
        report.extend(self._resolved.locate(d) for d in [*found.errors, *found.warnings])
        return report

    def scripts(self) -> Mapping[str, str]:
        """Tag -> the script that starts one of its workers.

        Raises
        ------
        NotImplementedError
            When the provider submits none.
        """
        if not hasattr(self._provider, "render_scripts"):
            raise NotImplementedError(
                f"target {self.target!r}: provider {self._provider.name!r} submits no scripts"
            )
        found: Mapping[str, str] = self._provider.render_scripts(self.spec)
        return found

    def plan(
        self,
        dry_run: bool = False,
        objective: str | None = None,
        policy: str | None = None,
        *,
        deadline: str | float | None = None,
        budget: float | None = None,
    ) -> Plan:
        """Say what the run will take, by the manifest and by earlier runs of the project.

        Parameters
        ----------
        dry_run
            Write and contact nothing. Planning never does: it only reads.
        objective
            ``"minimize cost"``: the fewest workers that end within the deadline;
            ``"minimize time"``: the most that still shorten the run; ``"balance"``: between the
            two. None: the counts that the manifest asks for.
        policy
            ``"safe"`` (the default with an objective): with 20 % headroom; ``"aggressive"``:
            without; ``"manual"``: the counts that the manifest asks for.
        deadline
            Length of the run, in seconds or such as ``"2h"``; by default the target's walltime.
        budget
            What the run may cost, in the currency of the target's prices.

        Raises
        ------
        ManifestError
            When the request is not valid.
        PlanError
            When nothing within the bounds keeps to the deadline or the budget.
        NotImplementedError
            For any other objective.
        """
        del dry_run  # nothing here writes or contacts anything
        request = PlanRequest.parse(objective, policy, deadline, budget)
        self._refuse_invalid()
        prices = quoted_prices(self._provider, self.spec)
        return make_plan(self.spec, self._resolved.lock, gather(self.spec, prices), request)

    def _refuse_invalid(self) -> None:
        report = self.validate()
        if not report.ok:
            count = len(report.errors)
            raise ManifestError(
                f"target {self.target!r} cannot be used: {count} error{'s' * (count > 1)}",
                diagnostics=report.errors,
            )

    def refuse_what_cannot_run(self) -> None:
        """Raise NotImplementedError where the target's provider cannot build clusters."""
        if not getattr(self._provider, "builds_clusters", True):
            raise NotImplementedError(
                f"target {self.target!r}: provider {self._provider.name!r} validates and plans, "
                "but cannot build clusters in this version; use a local or slurm target"
            )

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
            By default what :meth:`plan` says. A session that runs is brought to its counts.
        detach
            Start scheduler and workers apart from this process: they go on when it ends, until
            :meth:`delete`, ``scalable down``, or nobody has needed them for the idle timeout. A
            cluster of that name which runs already is brought to the plan's counts.
        name
            Of a detached cluster; by default made of the project and the target.
        timeout_s
            How long the first worker of each pool of a detached cluster is waited for.

        Returns
        -------
        ScalableClient
            The same one when it runs already.
        """
        if self._client is not None:
            if plan is not None and self._deployment is not None:
                self._deployment.scale(plan.scale_plan, source="plan")
            return self._client
        if (running := os.environ.get(settings.CLUSTER)) and not detach:
            return self._attach(find(running))
        if detach:
            return self._start_detached(plan, name, timeout_s)
        if name is not None:
            raise ClusterError("only a detached cluster has a name", hint="add detach=True")
        plan = plan or self.plan()
        self._refuse_invalid()
        self.refuse_what_cannot_run()
        for warning in self.validate().warnings:
            logger.warning("%s", warning.render())
        run: RunDirectory | None = None
        if settings.telemetry_enabled():
            manifest_yaml = self._resolved.to_yaml()
            self._record = SessionRecord.open(self.spec, plan, manifest_yaml=manifest_yaml)
            run = self._record.run
        self._deployment = self._scaled = Deployment(self._provider, self.spec, run)
        _open_sessions.add(self)
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
        plan = plan or self.plan()
        name = name or default_name(self.spec)
        existing = running_cluster(name)
        if existing is None:
            try:
                made = self.create(plan, DetachOptions(name=name))
            except NameTakenError:
                existing = running_cluster(name)  # another process was faster
                if existing is None:
                    raise
            else:
                # Loading the engine takes as long as starting a worker: both at once.
                threading.Thread(target=_load_engine, daemon=True).start()
                wait_until_ready(made, timeout_s=timeout_s)
                return self._attach(made)
        wait_until_ready(existing, timeout_s=timeout_s, workers=False)
        client = self._attach(existing)
        assert self._deployment is not None
        self._deployment.scale(plan.scale_plan, source="plan")
        return client

    def create(self, plan: Plan, options: DetachOptions) -> ClusterDirectory:
        """Start a detached cluster, and return before it is ready.

        Parameters
        ----------
        plan
            What it is to have.
        options
            What is asked beside the manifest.

        Raises
        ------
        ManifestError
            When the target cannot be detached, or one of its managers cannot be used.
        ClusterError
            When there is a cluster of that name already.
        """
        self._refuse_invalid()
        self.refuse_what_cannot_run()
        resolved = detached_manifest(self._resolved, options)
        return create(
            Creation(
                resolved.spec,
                manager_requests(self._manifest, resolved),
                plan,
                resolved.to_yaml(),
                options,
                sys_path=search_path(self.spec),
            )
        )

    def refuse_what_cannot_detach(self, options: DetachOptions) -> Mapping[str, ManagerRequest]:
        """Raise where the target cannot be detached; nothing is started or written.

        Returns
        -------
        Mapping
            Id -> request of each manager that a detached cluster would have.
        """
        self._refuse_invalid()
        self.refuse_what_cannot_run()
        return manager_requests(self._manifest, detached_manifest(self._resolved, options))

    def manage(
        self, cluster: str, manager: str, *, limits: Mapping[str, int], priority: int = 0
    ) -> int:
        """Provision workers of this target for a running cluster, until told to leave.

        Parameters
        ----------
        cluster
            Its name, or the path of an access file.
        manager
            Id of this manager within the cluster.
        limits
            Tag -> most workers of it.
        priority
            Lower numbers are filled first.

        Returns
        -------
        int
            An exit code.
        """
        from scalable.lifecycle.managing import attach_manager

        self._refuse_invalid()
        self.refuse_what_cannot_run()
        refuse_threads(self.spec)
        unknown = [tag for tag in limits if tag not in self.spec.components]
        if unknown:
            known = ", ".join(map(repr, self.spec.tags))
            raise PlanError(f"--max {unknown[0]}: no such component; there are {known}")
        return attach_manager(
            cluster,
            manager,
            self.spec,
            limits=limits,
            priority=priority,
            sys_path=search_path(self.spec),
        )

    def delete(self) -> None:
        """End the detached cluster that this session is attached to, for everybody."""
        if not isinstance(self._deployment, AttachedDeployment):
            raise ClusterError("this session has no detached cluster", hint="close() ends it")
        attachment = self._deployment
        self.close()
        attachment.delete()

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
        if isinstance(self._deployment, AttachedDeployment):
            client.listen()
        return client

    @property
    def client(self) -> ScalableClient:
        """The client of the running session."""
        if self._client is None:
            raise ClusterError("the session does not run", hint="call session.start() first")
        return self._client

    @property
    def cluster(self) -> Any:
        """The provider's cluster handle."""
        if self._deployment is None or self._deployment.cluster is None:
            raise ClusterError("the session does not run", hint="call session.start() first")
        return self._deployment.cluster

    @property
    def run_path(self) -> Path | None:
        """Directory of the run's record, or None without telemetry or before the start."""
        if isinstance(self._deployment, AttachedDeployment):
            return self._deployment.run_path
        return None if self._record is None else self._record.run.path

    @property
    def scaling_history(self) -> list[dict[str, Any]]:
        """Every change of a wanted count, oldest first; also after the end."""
        return [] if self._scaled is None else list(self._scaled.scaling_history)

    def scale(self, tag: str | Mapping[str, int], n: int | None = None) -> None:
        """Set how many workers of a tag are wanted; the others stay as they are.

        Parameters
        ----------
        tag
            The pool, or a mapping of tags to counts.
        n
            Absolute count; 0 empties the pool.

        Raises
        ------
        ClusterError
            When the manifest has no such component, or the count is no count.
        """
        counts = dict(tag) if isinstance(tag, Mapping) else {tag: n}
        checked: dict[str, int] = {}
        for name, count in counts.items():
            if name not in self.spec.components:
                known = ", ".join(repr(t) for t in self.spec.tags)
                raise ClusterError(f"no component {name!r} to scale; known tags: {known}")
            if isinstance(count, bool) or not isinstance(count, int) or count < 0:
                raise ClusterError(f"{name!r} cannot have {count!r} workers")
            checked[name] = count
        if self._deployment is None:
            raise ClusterError("the session does not run", hint="call session.start() first")
        total = written_total(self.spec)
        after = sum((self._deployment.counts | checked).values())
        if total is not None and after > total[1]:
            logger.warning("%d workers in all are more than the manifest's %s %d", after, *total)
        resources = {name: self.spec.resources(name) for name in checked}
        self._deployment.scale(ScalePlan(checked, resources), source="manual")

    def apply(self, decision: ScaleDecision) -> None:
        """Carry out what a scaler decided, on the pools that it names alone.

        What is to be added and removed is relative to what is wanted now. The manifest's bounds
        hold: those of a component's ``workers``, and the target's for all pools together.

        Parameters
        ----------
        decision
            For example of an :class:`~scalable.AdaptiveScaler`.

        Raises
        ------
        ClusterError
            When it names a component that the manifest does not have; nothing changes then.
        """
        if self._deployment is None:
            raise ClusterError("the session does not run", hint="call session.start() first")
        for tag in decision.changes:
            if tag not in self.spec.components:
                known = ", ".join(repr(t) for t in self.spec.tags)
                raise ClusterError(f"no component {tag!r} to scale; known tags: {known}")
        wanted = dict.fromkeys(self.spec.tags, 0) | self._deployment.wanted
        decided = decision.counts(wanted)
        counts = within_bounds(self.spec, wanted, decided)
        held = [f"{tag} is held to {counts[tag]}" for tag in counts if counts[tag] != decided[tag]]
        if held:
            logger.warning("the manifest's bounds hold: %s", ", ".join(held))
        reason = "; ".join([decision.reasoning or "a decision", *held])
        resources = {tag: self.spec.resources(tag) for tag in counts}
        plan = ScalePlan(counts, resources)
        if counts:
            self._deployment.scale(plan, source="decision", reason=reason)

    def record_artifact(
        self,
        path: str | os.PathLike[str],
        *,
        name: str | None = None,
        kind: str = "file",
        **metadata: Any,
    ) -> None:
        """Note in the run's record that the workflow made something.

        Parameters
        ----------
        path
            File or directory, or a URL.
        name
            By default the last part of the path.
        kind
            What it is: ``"file"``, ``"table"``, ``"plot"``, ...
        **metadata
            Anything else that is worth knowing, as JSON values.
        """
        if self._record is not None:
            self._record.artifact(path, name=name, kind=kind, metadata=metadata)
        elif self._deployment is None:
            raise RunError("there is no run to record in", hint="call session.start() first")

    # Ending -------------------------------------------------------------------------------------

    def close(self) -> None:
        """End workers, scheduler and record. Closing twice is harmless."""
        self._close(None)

    def _close(self, error: BaseException | None) -> None:
        _open_sessions.discard(self)
        if os.getpid() != self._process:
            return  # a fork of the process that the session belongs to
        client, self._client = self._client, None
        deployment, self._deployment = self._deployment, None
        if error is None and client is not None:
            _warn_of_unfinished(client)
        # Each is ended whatever becomes of the others: the client first, the record last.
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


def _load_engine() -> None:
    import scalable.client.attached
    import scalable.client.client  # noqa: F401 - to have it loaded


def _warn_of_unfinished(client: ScalableClient) -> None:
    unfinished = sum(state.status == "pending" for state in list(client.futures.values()))
    if unfinished:
        logger.warning(
            "the session ends while %d calls have not finished: they are cancelled; "
            "gather their results before",
            unfinished,
        )


@atexit.register
def _close_open_sessions() -> None:
    """End sessions that the script left open, before Dask closes what they stand on."""
    error = getattr(sys, "last_value", None)
    for session in list(_open_sessions):
        session._close(error)  # noqa: SLF001
