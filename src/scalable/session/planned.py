"""The part of a session that needs no cluster: checks and plans."""

from __future__ import annotations

from collections.abc import Mapping

from scalable.session.request import Request
from scalable.spec import DeploymentSpec, Plan, ValidationReport
from scalable.storage import Storage, no_storage


class Planned:
    """The methods of a session that check and plan, and need no cluster.

    Parameters
    ----------
    request
        The manifest with its chosen target.
    """

    def __init__(self, request: Request) -> None:
        self._request = request

    @property
    def spec(self) -> DeploymentSpec:
        """`DeploymentSpec`: the workers that the provider is asked for."""
        return self._request.spec

    @property
    def target(self) -> str:
        """Name of the target."""
        return self._request.target

    @property
    def storage(self) -> Storage:
        """Place of the project's results, which calls can take as an argument.

        Inside a call, :func:`scalable.current_storage` returns the same.

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
            When the target does not answer.
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
            number between the two. None: the counts that the manifest asks for.
        policy
            ``"safe"`` (the default with an objective): with 20 % headroom; ``"aggressive"``:
            without headroom; ``"manual"``: the counts that the manifest asks for.
        deadline
            Longest duration of the run, in seconds or as text such as ``"2h"``; by default the
            target's walltime.
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
