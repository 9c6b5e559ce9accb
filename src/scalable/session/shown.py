"""Methods of a session for overviews, progress displays and notebooks."""

from __future__ import annotations

import logging
import os
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalable.errors import ClusterError, RunError
from scalable.model import DeploymentSpec, Plan, ValidationReport
from scalable.model.overview import Overview
from scalable.session.request import Request
from scalable.storage import Storage, no_storage

if TYPE_CHECKING:
    from scalable.clusters.connecting import AttachedDeployment
    from scalable.clusters.creation import DetachOptions
    from scalable.clusters.deployment import Deployment
    from scalable.records import ClusterDirectory
    from scalable.runs.report.run_report import RunReport
    from scalable.session.progress import Progress, ShownToRun

logger = logging.getLogger("scalable.session")


class Shown:
    """Methods of a session that plan, start detached clusters, and show what its cluster does.

    Parameters
    ----------
    request
        The manifest with its chosen target.
    """

    _deployment: Deployment | AttachedDeployment | None

    def __init__(self, request: Request) -> None:
        self._request = request
        self._run_plan: str | None = None
        self._to_run: ShownToRun | None = None

    @abstractmethod
    def _running(self) -> Deployment | AttachedDeployment: ...

    @property
    @abstractmethod
    def run_path(self) -> Path | None:
        """Directory of the run's record, or None without a record."""

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

    def _show_to_run(self) -> None:
        """Start showing overviews to the enclosing ``scalable run``, if any."""
        from scalable.session.progress import ShownToRun

        self._to_run = ShownToRun.begin(self._present)

    def _end_showing(self) -> None:
        to_run, self._to_run = self._to_run, None
        if to_run is not None:
            to_run.end()

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
