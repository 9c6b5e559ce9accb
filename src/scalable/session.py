"""A session: manifest, target, cluster, client and run record, from the user's side."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import weakref
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from scalable import settings
from scalable.errors import ClusterError, ManifestError, PlanError, RunError
from scalable.lifecycle import Deployment, SessionRecord
from scalable.manifest import Manifest, ResolvedManifest, choose_target, read_targets
from scalable.planning import conflicts, make_plan, notices, written_total
from scalable.providers.registry import get_provider, option_models
from scalable.spec import DeploymentSpec, Plan, ScalePlan, ValidationReport
from scalable.telemetry import RunDirectory

if TYPE_CHECKING:
    from scalable.cluster.client import ScalableClient

logger = logging.getLogger("scalable.session")

OBJECTIVES = ("minimize cost", "minimize time", "balance")
POLICIES = ("safe", "aggressive", "manual")
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
        self._deployment: Deployment | None = None
        self._client: ScalableClient | None = None
        self._record: SessionRecord | None = None
        self._history: list[dict[str, Any]] = []
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
            By default SCALABLE_TARGET, then a slurm target when inside a Slurm job, then
            ``local``, then the only one.

        Raises
        ------
        ManifestError
            With every fault of the file, or the targets to choose from.
        """
        models = option_models()
        file = settings.manifest_path(path)
        targets = read_targets(file)
        chosen = choose_target(targets, target)
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
        self, dry_run: bool = False, objective: str | None = None, policy: str | None = None
    ) -> Plan:
        """Say what the run will take.

        Parameters
        ----------
        dry_run
            Write and contact nothing. A plan that the manifest alone gives never does.
        objective
            None: the counts that the manifest asks for.
        policy
            None or ``"manual"``.

        Raises
        ------
        ManifestError
            When the request is not valid.
        NotImplementedError
            For objectives, which come with a later version.
        """
        del dry_run  # nothing here writes or contacts anything
        if policy is not None and policy.lower() not in POLICIES:
            raise PlanError(f"unknown policy {policy!r}", hint=f"there are: {', '.join(POLICIES)}")
        if objective is not None or (policy or "manual").lower() != "manual":
            raise NotImplementedError(
                "planning by objectives is not available in this version; "
                f"the objectives will be {', '.join(map(repr, OBJECTIVES))}. "
                "plan() without one gives the counts that the manifest asks for"
            )
        self._refuse_invalid()
        return make_plan(self.spec, self._resolved.lock)

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

    def start(self, plan: Plan | None = None) -> ScalableClient:
        """Build the cluster, bring its pools to the plan's counts, and connect.

        Parameters
        ----------
        plan
            By default what :meth:`plan` says.

        Returns
        -------
        ScalableClient
            The same one when it runs already.
        """
        if self._client is not None:
            return self._client
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
        self._deployment = Deployment(self._provider, self.spec, run)
        self._history = self._deployment.scaling_history
        _open_sessions.add(self)
        try:
            self._deployment.start(plan.scale_plan)
            self._client = self._connect()
        except BaseException as error:
            self._close(error)
            raise
        return self._client

    def _connect(self) -> ScalableClient:
        from scalable.cluster.client import ScalableClient

        labels: dict[str, list[str]] = {}
        for tag, component in self.spec.components.items():
            for label in component.tags:
                labels.setdefault(label, []).append(tag)
        return ScalableClient(
            self.cluster,
            tasks={task.name: task.component for task in self.spec.tasks.values()},
            labels=labels,
            tags=self.spec.tags,
        )

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
        return None if self._record is None else self._record.run.path

    @property
    def scaling_history(self) -> list[dict[str, Any]]:
        """Every change of a wanted count, oldest first; also after the end."""
        return list(self._history)

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
