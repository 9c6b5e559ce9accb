"""The part of a session that shows the progress of its tasks: overviews, displays, notebooks."""

from __future__ import annotations

import logging
import os
import sys
import threading
import uuid
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TextIO

from scalable import settings
from scalable.errors import ClusterError, RunError
from scalable.exports import PublicNames
from scalable.records.overview_file import OverviewFile
from scalable.session.displays import Display, LineDisplay, LiveDisplay, can_draw
from scalable.session.request import Request
from scalable.showing.progress import live_lines
from scalable.spec import DeploymentSpec, Plan, ValidationReport
from scalable.spec.overview import Overview
from scalable.storage import Storage, no_storage

if TYPE_CHECKING:
    from scalable.lifecycle import AttachedDeployment, Deployment
    from scalable.lifecycle.creation import DetachOptions
    from scalable.records import ClusterDirectory
    from scalable.report import RunReport
    from scalable.spec.overview import Overview

# Planned ------------------------------------------------------------------------------------------

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


# Spending -----------------------------------------------------------------------------------------


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


# Shown --------------------------------------------------------------------------------------------


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
        from scalable.markup.clusters import component_table, render_overview

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


# Progress -----------------------------------------------------------------------------------------

#: Width and maximum number of lines of printed progress.
_WIDTH, _LINES = 100, 24


class Progress(PublicNames):
    """The progress of a session's tasks, shown until the end of a ``with`` block.
    Without a block, ``print`` and notebooks show the present state.
    """

    def __init__(self, present: Callable[[], Overview | None]) -> None:
        self._present = present
        self._shown: ExitStack | None = None

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            display = stack.enter_context(_display(stack))
            watch = OverviewWatch(self._present, lambda o: display.update([] if o is None else [o]))
            stack.callback(watch.stop)
            watch.start()
            self._shown = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        shown, self._shown = self._shown, None
        if shown is not None:
            shown.close()

    def __str__(self) -> str:
        overview = self._present()
        if overview is None:
            return "the session is not running"
        return "\n".join(line for line, _ in live_lines([overview], _WIDTH, _LINES))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return _html([o] if (o := self._present()) is not None else [])


def _display(stack: ExitStack) -> Display:
    """Return the display for this process, with its resources on the stack."""
    if os.environ.get(settings.RUN_OVERVIEWS):
        return Display()  # `scalable run` shows the progress
    if _in_notebook():
        return NotebookDisplay()
    if can_draw(sys.stderr):
        before = (sys.stdout, sys.stderr)
        display = LiveDisplay(sys.stderr, redirect_stdout=sys.stdout.isatty(), redirect_stderr=True)
        stack.enter_context(_logs_follow(before, (sys.stdout, sys.stderr)))
        return display
    return LineDisplay()


class NotebookDisplay(Display):
    """Table in the output of a notebook's cell, kept up to date."""

    def __init__(self) -> None:
        self._handle: Any = None

    def update(self, overviews: Sequence[Overview]) -> None:
        from IPython.display import display

        bundle = {"text/html": _html(overviews), "text/plain": "progress of the calls"}
        if self._handle is None:
            self._handle = display(bundle, raw=True, display_id=True)
        else:
            self._handle.update(bundle, raw=True)


def _html(overviews: Sequence[Overview]) -> str:
    from scalable.markup.clusters import render_progress

    return render_progress(overviews)


def _in_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None


@contextmanager
def _logs_follow(before: Sequence[TextIO], after: Sequence[TextIO]) -> Iterator[None]:
    """Redirect log handlers to this process's present output, during a ``with`` block.
    Handlers keep the streams of the moment at which they were made.
    """
    loggers = [logging.getLogger(), *map(logging.getLogger, list(logging.root.manager.loggerDict))]
    changed: list[tuple[logging.StreamHandler[Any], Any]] = []
    for handler in {handler for each in loggers for handler in each.handlers}:
        if isinstance(handler, logging.StreamHandler) and handler.stream in before:
            changed.append((handler, handler.stream))
            handler.setStream(after[list(before).index(handler.stream)])
    try:
        yield
    finally:
        for handler, stream in changed:
            handler.setStream(stream)


# Watching -----------------------------------------------------------------------------------------

#: Seconds between two overviews.
INTERVAL_S = 1.0
#: Longest wait for the end of the thread, because one request may take as long.
END_S = 6.0


class OverviewWatch:
    """A thread that requests overviews, and passes them to a callback in the thread.
    The callback gets None when there is no longer an overview.
    A ClusterError, OSError, RuntimeError or TimeoutError of ``ask`` counts as no overview.
    """

    def __init__(
        self, ask: Callable[[], Overview | None], told: Callable[[Overview | None], None]
    ) -> None:
        self._ask, self._told = ask, told
        self._over = threading.Event()
        self._knew = False
        self._thread = threading.Thread(target=self._run, name="scalable-overviews", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread after a last overview, waiting at most 6 s."""
        if not self._over.is_set():
            self._over.set()
            if self._thread is not threading.current_thread():
                self._thread.join(END_S)

    def _run(self) -> None:
        over = False
        while not over:
            over = self._over.wait(INTERVAL_S if self._knew else INTERVAL_S / 4)
            self._look()

    def _look(self) -> None:
        overview = None
        try:
            overview = self._ask()
        # A cluster that is being deleted raises any of these.
        except (ClusterError, OSError, RuntimeError, TimeoutError) as error:
            logger.debug("there is no overview: %s", error)
        if overview is not None or self._knew:
            self._knew = overview is not None
            self._told(overview)


class ShownToRun:
    """The overviews of a session, shown to the ``scalable run`` around it."""

    def __init__(self, file: OverviewFile, ask: Callable[[], Overview | None]) -> None:
        self._file = file
        self._session = uuid.uuid4().hex
        self._lost = False
        self._watch = OverviewWatch(ask, self._tell)

    @classmethod
    def begin(cls, ask: Callable[[], Overview | None]) -> ShownToRun | None:
        """Start to show overviews, or return None if no ``scalable run`` waits for them."""
        path = os.environ.get(settings.RUN_OVERVIEWS)
        if not path:
            return None
        shown = cls(OverviewFile(Path(path)), ask)
        shown._watch.start()
        return shown

    def end(self) -> None:
        """Show the last overview as that of a closed session."""
        self._watch.stop()
        self._write(lambda: self._file.end(self._session))

    def _tell(self, overview: Overview | None) -> None:
        if overview is not None:
            self._write(lambda: self._file.show(self._session, overview))

    def _write(self, write: Callable[[], None]) -> None:
        if self._lost:
            return
        try:
            write()
        except OSError as error:
            self._lost = True
            logger.debug("overviews are no longer shown: %s", error)
