"""The part of a session that shows the progress of its tasks: overviews, displays, notebooks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scalable.errors import ClusterError
from scalable.exports import PublicNames
from scalable.session.request import Request
from scalable.session.spending import Spending

if TYPE_CHECKING:
    from scalable.session.progress import Progress
    from scalable.session.watching import ShownToRun
    from scalable.spec.overview import Overview


class Shown(PublicNames, Spending):
    """The methods of a session that show its cluster and the progress of its tasks.

    Parameters
    ----------
    request
        The manifest with its chosen target.
    """

    def __init__(self, request: Request) -> None:
        super().__init__(request)
        self._to_run: ShownToRun | None = None

    def overview(self) -> Overview:
        """Return the state of the cluster: pools, tasks by name, predicted finish, costs.

        ``scalable top``, the dashboard and :meth:`progress` show the same numbers.

        Raises
        ------
        ClusterError
            When the session is not running, or its provider's clusters make no overviews.
        """
        self._running()
        overview = self._present()
        if overview is None:
            raise ClusterError(
                f"the cluster on target {self.target!r} makes no overviews",
                hint="session.status() and the client tell what is known",
            )
        return overview

    def progress(self) -> Progress:
        """Return the progress of the session's tasks, to show while a block of code runs.

        As a context manager it counts the done, running, waiting and failed tasks of each name,
        and predicts the finish, until the end of the block. On a terminal this is a table below
        the program's output, in a notebook a table that is kept up to date, elsewhere a line on
        standard error every ten seconds. Under ``scalable run``, which shows the same, it shows
        nothing. ``print`` shows the present state once.

        Raises
        ------
        ClusterError
            As :meth:`overview` does.

        Examples
        --------
        >>> with session.progress():  # doctest: +SKIP
        ...     results = client.gather(futures)
        """
        from scalable.session.progress import Progress

        self.overview()
        return Progress(self._present)

    def _present(self) -> Overview | None:
        from scalable.client.shown_cluster import ShownCluster

        try:
            cluster = self._running().cluster
        except ClusterError:
            return None
        return cluster.overview() if isinstance(cluster, ShownCluster) else None

    def _show_to_run(self) -> None:
        """Start to show overviews to the ``scalable run`` around this process, if any."""
        from scalable.session.watching import ShownToRun

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
        from scalable.markup.clusters import render_overview
        from scalable.markup.sessions import component_table

        facts: list[tuple[str, Any]] = [
            ("Target", self.target),
            ("Provider", self.spec.provider_name),
        ]
        if (run := self.run_path) is not None:
            facts.append(("Run", run))
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
