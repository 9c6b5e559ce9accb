"""The part of a session that reports on its cluster and its run, and sets the budget."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from scalable.errors import RunError
from scalable.session.planned import Planned

if TYPE_CHECKING:
    from pathlib import Path

    from scalable.lifecycle import AttachedDeployment, Deployment
    from scalable.report import RunReport


class Spending(Planned):
    """The methods of a session about the state and the costs of its running cluster."""

    @abstractmethod
    def _running(self) -> Deployment | AttachedDeployment: ...

    @property
    @abstractmethod
    def run_path(self) -> Path | None:
        """Directory of the run's record; None without a record."""

    def report(self) -> RunReport:
        """Return the report of the session's run as far as it is recorded, even after it finished.

        ``print`` shows it in plain form, a notebook as HTML, and its ``save`` writes a page.

        Raises
        ------
        RunError
            When no run is recorded, or its record is not on this machine or cannot be read.
        """
        from scalable.report import report_on
        from scalable.telemetry import read_run

        path = self.run_path
        if path is None:
            raise RunError(
                "this session has no record of a run on this machine",
                hint="start it first, with SCALABLE_TELEMETRY not 0",
            )
        return report_on(read_run(path))

    def status(self) -> dict[str, Any]:
        """Return the state of the cluster, its pools and managers, and its costs.

        Returns
        -------
        dict
            ``state`` and its ``reason``; ``pools`` (tag -> counts); ``managers``; ``tasks``; and
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
        """Set the money that the cluster may spend in all, from its start on.

        Parameters
        ----------
        amount
            The new budget. Once 80 % of it are spent, no pool grows.

        Raises
        ------
        ClusterError
            When the amount is not valid, or the session is not running.
        """
        self._running().set_budget(amount)
