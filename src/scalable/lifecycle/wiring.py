"""The parts that run next to a scheduler: run recorder, status on disk, scaling with load.
Schedulers of detached and of embedded clusters have the same parts.
"""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalable.lifecycle.rates import program_price
from scalable.liveness import identify_process
from scalable.protocol.events import scaling_row
from scalable.records import ClusterDirectory
from scalable.spec import ClusterRecord, DeploymentSpec
from scalable.telemetry import RunDirectory

if TYPE_CHECKING:
    from scalable.lifecycle.snapshots import Snapshots
    from scalable.scheduler.controller import Controller
    from scalable.scheduler.recorder import Recorder


class Wiring:
    """Starts and stops the parts that run next to a scheduler. No directory: no record."""

    def __init__(
        self, record: ClusterRecord, directory: ClusterDirectory | None, run: RunDirectory | None
    ) -> None:
        self._record = record
        self._directory = directory
        self._run = run
        self._recorder: Recorder | None = None
        self._reruns: Counter[str] = Counter()
        self._snapshots: Snapshots | None = None

    def start_recorder(self, scheduler: Any) -> Recorder | None:
        """Start recording tasks in the run. Call it in the scheduler's event loop."""
        if self._run is None:
            return None
        from scalable.scheduler.ledger import Ledger
        from scalable.scheduler.recorder import Recorder
        from scalable.scheduler.run_files import RunFiles

        self._recorder = Recorder(scheduler, self._run, self._record.tags)
        self._recorder.reruns = self._reruns
        RunFiles(scheduler, self._run.path, self._recorder.flush)
        Ledger.of(scheduler).listen(self._recorder)
        self._recorder.start_flushing()
        return self._recorder

    def describe(self, scheduler: Any) -> None:
        """Set name, tasks and limit of the cluster on its scheduler, for messages and clients."""
        scheduler.tags_of_tasks = self._record.tasks
        scheduler.max_workers = self._record.max_workers
        if not self._record.embedded:
            scheduler.cluster_name = self._record.name

    def show_overviews(self, controller: Controller) -> None:
        """Add the facts of the cluster's record to its overviews."""
        record, overviews = self._record, controller.overviews
        shown = ("id", "name", "project", "target", "provider", "embedded")
        overviews.facts |= {name: getattr(record, name) for name in shown}
        overviews.reruns = self._reruns
        overviews.facts["run"] = None if self._run is None else str(self._run.path)
        overviews.expected_s = {
            task: seconds
            for task, (_, seconds, _) in record.expectations.items()
            if seconds is not None
        }

    def stop_recorder(self) -> None:
        """Stop recording and write buffered rows. Call it in the scheduler's event loop."""
        recorder, self._recorder = self._recorder, None
        if recorder is not None:
            recorder.stop()

    def scaled(self, tag: str, before: int, after: int, reason: str, source: str) -> dict[str, Any]:
        """Record a change of a desired worker count, and return the recorded row."""
        row = scaling_row(tag, before, after, reason, source)
        if self._run is not None:
            self._run.append("scaling", row)
        return row

    def announce(
        self,
        address: str,
        *,
        dashboard: str | None = None,
        log_dir: Path | None = None,
        socket: Path | None = None,
    ) -> None:
        """Write the scheduler's address and process to the cluster's directory.
        ``dashboard`` is a link with the token. ``log_dir`` None means that of the run. ``socket``
        is for a scheduler in the user's process.
        """
        if self._directory is None:
            return
        logs = self._run.path / "logs" if log_dir is None and self._run is not None else log_dir
        self._directory.write_scheduler(
            {
                **identify_process(),
                "address": address,
                "dashboard": dashboard,
                "run": None if self._run is None else str(self._run.path),
                "log_dir": None if logs is None else str(logs.absolute()),
                "started_at": time.time(),
                **({} if socket is None else {"socket": str(socket)}),
            }
        )

    def show_status(self, controller: Controller) -> None:
        """Start writing the status to disk whenever it changes."""
        if self._directory is None:
            return
        from scalable.lifecycle.snapshots import Snapshots

        # Another machine removes the record of a detached cluster that it considers stopped.
        on_removed = None if self._record.embedded else controller.end
        spending = controller.spending
        self._snapshots = Snapshots(self._directory, controller, on_removed, lambda: spending.state)
        controller.on_change = self._snapshots.changed
        self._snapshots.changed()

    def stop_status(self) -> None:
        if self._snapshots is not None:
            self._snapshots.close()

    def count_costs(self, controller: Controller, spec: DeploymentSpec) -> None:
        """Start to count costs. Must be called in the scheduler's event loop."""
        spending, record = controller.spending, self._record
        # The scheduler of an embedded cluster is in the user's process.
        detached = record.abandoned_after_s is None
        price = None if record.embedded else program_price(spec, detached=detached)
        if self._recorder is not None:
            spending.listeners.append(self._recorder.event)
        spending.begin(
            scheduler=price,
            budget=spec.budget,
            state=None if self._directory is None else self._directory.spending(),
        )

    def follow_load(self, controller: Controller) -> None:
        record = self._record
        controller.adaptation.follow(
            {tag: own for tag, own in record.adaptive.items() if tag in record.wanted},
            maximum=record.adaptive_maximum,
            expectations=record.expectations,
            objective=record.objective,
            policy=record.policy,
        )
