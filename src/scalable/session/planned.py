"""The part of a session that needs only its manifest: checks, plans, and detached clusters."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from scalable.session.request import Request
from scalable.spec import DeploymentSpec, Plan, ValidationReport
from scalable.storage import Storage, no_storage

if TYPE_CHECKING:
    from scalable.lifecycle.creation import DetachOptions
    from scalable.records import ClusterDirectory

logger = logging.getLogger("scalable.session")


class Planned:
    """The methods of a session that check, plan, and start detached clusters and managers.

    Parameters
    ----------
    request
        The manifest with its chosen target.
    """

    def __init__(self, request: Request) -> None:
        self._request = request
        self._run_plan: str | None = None

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
            When the manifest names no ``default_storage``.
        """
        url = self.spec.storage_url
        if url is None:
            raise no_storage()
        return Storage(url)

    def validate(self) -> ValidationReport:
        """Check offline: numbers of workers against bounds, then the provider's own checks."""
        return self._request.validate()

    def check(self) -> ValidationReport:
        """Check against the live state of the target, such as its batch system; start nothing.

        Raises
        ------
        NotImplementedError
            When the provider has no live check.
        ProviderError
            When the target does not respond.
        """
        return self._request.check()

    def scripts(self) -> Mapping[str, str]:
        """Return tag -> script that starts one worker.

        Raises
        ------
        NotImplementedError
            When the provider submits no scripts.
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
            Without effect: planning only reads, and never writes or contacts anything.
        objective
            ``"minimize cost"``: the smallest number of workers that meets the deadline;
            ``"minimize time"``: the largest number that still shortens the run; ``"balance"``: a
            number between the two. None: the cheapest counts within the deadline if one is given,
            else the quickest within the budget if one is given, else the counts of the manifest.
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
        """Return the checked plan of ``scalable run``, or else the given one, or None."""
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
