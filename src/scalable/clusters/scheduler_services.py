"""Services next to a scheduler: run recorder, status on disk, scaling with load."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from scalable.clusters.specs import program_price
from scalable.liveness import identify_process
from scalable.model import ClusterRecord, DeploymentSpec
from scalable.protocol.events import scaling_row
from scalable.records import ClusterDirectory
from scalable.runs.directory import RunDirectory
from scalable.runs.streams import LOGS
from scalable.scheduler.controller import Controller
from scalable.scheduler.recorder import Recorder, RunFiles


class SchedulerServices:
    """Services next to a scheduler. A service whose run or directory is missing does nothing."""

    def __init__(
        self, record: ClusterRecord, directory: ClusterDirectory | None, run: RunDirectory | None
    ) -> None:
        self._record = record
        self._directory = directory
        self._run = run
        self._recorder: Recorder | None = None
        self._files: RunFiles | None = None
        self._snapshots: Snapshots | None = None

    def start_recorder(self, scheduler: Any) -> Recorder | None:
        """Start recording tasks in the run. Call it in the scheduler's event loop."""
        if self._run is None:
            return None
        self._recorder = Recorder(scheduler, self._run, self._record.tags)
        self._files = RunFiles(scheduler, self._run.path, self._recorder.flush)
        self._recorder.start_flushing()
        return self._recorder

    def describe(self, scheduler: Any) -> None:
        """Set the cluster's name, tasks and ``max_workers`` on its scheduler."""
        scheduler.tags_of_tasks = self._record.tasks
        scheduler.max_workers = self._record.max_workers
        scheduler.limited_by = self._record.limited_by
        if not self._record.embedded:
            scheduler.cluster_name = self._record.name

    def show_overviews(self, controller: Controller) -> None:
        """Add the facts of the cluster's record to its overviews."""
        record, overviews = self._record, controller.overviews
        shown = ("id", "name", "project", "target", "provider", "embedded")
        overviews.facts |= {name: getattr(record, name) for name in shown}
        overviews.facts["run"] = None if self._run is None else str(self._run.path)
        overviews.expected_s = {
            task: seconds
            for task, (_, seconds, _) in record.expectations.items()
            if seconds is not None
        }

    async def write_rows(self) -> None:
        """Write the buffered rows. Call it in the scheduler's event loop."""
        if self._recorder is not None:
            self._recorder.flush()

    def stop_recorder(self) -> None:
        """Stop recording and write buffered rows. Call it in the scheduler's event loop."""
        recorder, self._recorder = self._recorder, None
        if recorder is not None:
            recorder.stop()

    def scaled(self, tag: str, before: int, after: int, reason: str, source: str) -> dict[str, Any]:
        """Record a change of a desired worker count, and return the row."""
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
        """Write the scheduler's address and process to the cluster's directory."""
        if self._directory is None:
            return
        logs = self._run.path / LOGS if log_dir is None and self._run is not None else log_dir
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
        if self._files is not None:
            self._files.bill = spending.write_rows
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


# Snapshots ----------------------------------------------------------------------------------------

logger = logging.getLogger("scalable.clusters")

#: Seconds after which an unchanged status is written again.
INTERVAL_S = 2.0
#: Seconds between two writes of the costs, which a successor of the scheduler would restore.
SPENDING_INTERVAL_S = 5.0
#: Shortest time between two snapshots, in seconds. Changes in between make one snapshot. If a
#: status takes long, the time is longer: snapshots take at most a share of the event loop's time.
PAUSE_S = 0.1
SHARE = 0.05
CLOSE_TIMEOUT_S = 5.0


class Snapshots:
    """Writer of ``status.json``, in a thread. ``on_removed`` reports that its directory is gone."""

    def __init__(
        self,
        directory: ClusterDirectory,
        controller: Controller,
        on_removed: Callable[[str], Any] | None = None,
        spending: Callable[[], Mapping[str, Any] | None] | None = None,
    ) -> None:
        self._on_removed = on_removed
        self._spending = spending or (lambda: None)
        self._directory = directory
        self._controller = controller
        self._loop = controller.scheduler.loop
        self._written: Mapping[str, Any] = {}
        self._written_at = 0.0
        self._spending_at: float | None = None
        self._changed = False
        self._running = False
        self._closed = False
        self._writer: threading.Thread | None = None

    def changed(self) -> None:
        """Schedule a snapshot soon. Thread-safe."""
        self._changed = True
        if not self._running and not self._closed:
            self._running = True
            self._loop.add_callback(self._snapshot)

    def close(self) -> None:
        """Stop writing. Returns when the last snapshot is on disk, or after 5 s."""
        self._closed = True
        writer = self._writer
        if writer is not None:
            writer.join(CLOSE_TIMEOUT_S)

    def _snapshot(self) -> None:
        if self._closed:
            return
        if self._writer is not None and self._writer.is_alive():
            self._loop.call_later(PAUSE_S, self._snapshot)  # the disk is slow
            return
        if not self._changed:
            self._running = False
            return
        self._changed = False
        began = time.perf_counter()
        status = self._controller.status()
        pause_s = max(PAUSE_S, (time.perf_counter() - began) / SHARE)
        told = {**status, "written_at": 0, "managers": _without_silence(status["managers"])}
        told["idle_ends_at"] = told["cost"] = None
        now = time.monotonic()
        if told != self._written or now - self._written_at >= INTERVAL_S:
            self._written, self._written_at = told, now
            spending = None
            if self._spending_at is None or now - self._spending_at >= SPENDING_INTERVAL_S:
                spending, self._spending_at = self._spending(), now
            writer = threading.Thread(
                target=self._write, args=(status, spending), name="scalable-status", daemon=True
            )
            try:
                writer.start()
            except RuntimeError:  # Python 3.12 starts no thread while it exits
                self._write(status, spending)
            else:
                self._writer = writer
        self._loop.call_later(pause_s, self._snapshot)

    def _write(self, status: Mapping[str, Any], spending: Mapping[str, Any] | None) -> None:
        try:
            self._directory.write_status(status)
            if spending is not None:
                self._directory.write_spending(spending)
        except OSError as error:
            logger.warning("the status of the cluster cannot be written: %s", error)
            path = self._directory.path
            # If the parent is missing, the file system is unmounted, and may come back.
            if self._on_removed is not None and path.parent.is_dir() and not path.exists():
                self._closed = True
                self._loop.add_callback(self._on_removed, "its record was removed")


def _without_silence(managers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in manager.items() if k != "silent_s"} for manager in managers]
