"""Recorder of a run, which writes rows about tasks, workers, failures and resources.
Rows are written in batches, because the recorder must take at most 5 % of the scheduler's CPU time
even if the tasks do nothing.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from distributed import Scheduler
from distributed.scheduler import WorkerState
from tornado.ioloop import PeriodicCallback

from scalable.dask_compat.scheduler import LostWorker
from scalable.protocol.events import failure_event, worker_event
from scalable.protocol.handlers import Handler, offer
from scalable.protocol.measured import SHARES, Measured
from scalable.runs.calls import RERUN, RetryReason
from scalable.runs.directory import RunDirectory
from scalable.scheduler.task_log import (
    EndedTask,
    HeardOutcomes,
    Listener,
    LoggedTask,
    TaskLog,
)

logger = logging.getLogger("scalable.scheduler")

FLUSH_INTERVAL_S = 0.5
#: Shortest time between two rows about a worker's resource use, and largest number of rows written
#: at once. With more than 100 workers each has fewer rows, which bounds the record's size and each
#: turn of the event loop.
RESOURCES_INTERVAL_S = 5.0
RESOURCES_AT_ONCE = 10
#: Number of collected rows that are written early. Writing blocks the event loop.
MOST_LINES = 10_000
#: Largest number of tasks that the row about a lost worker lists.
LISTED_TASKS = 20
#: Measurements of a task that never ran.
NOT_MEASURED = Measured()


class Recorder(Listener):
    """Writes a run's rows from the events of a scheduler's task log.
    ``tags`` are the pools' tags.
    """

    def __init__(self, scheduler: Scheduler, run: RunDirectory, tags: Iterable[str]) -> None:
        self.scheduler = scheduler
        self._run = run
        self._tags = frozenset(tags)
        self._lines: list[str] = []
        self._remembered: list[Mapping[str, Any]] = []
        self._log = TaskLog.of(scheduler)
        self._log.listen(self)
        self._last_ended: Any = None
        # By key of a bundle that was just lost: why it ran, if no start of it is known.
        self._lost: dict[Any, tuple[RetryReason, str | None]] = {}
        self._flushing = PeriodicCallback(self._tick, FLUSH_INTERVAL_S * 1000)
        self._resources_at = 0.0
        # Workers whose rows are still to be written in this round.
        self._unsampled: list[WorkerState] = []
        for worker in scheduler.workers.values():
            self.worker_added(worker)

    def start_flushing(self) -> None:
        """Start writing the collected rows twice a second, in the running event loop."""
        self._flushing.start()

    def closed(self, scheduler: Scheduler) -> None:  # noqa: ARG002
        self.stop()

    def stop(self) -> None:
        self._flushing.stop()
        self.flush()

    def flush(self) -> None:
        if self._lines:
            lines, self._lines = self._lines, []
            self._run.extend("tasks", lines)
        if self._remembered:
            rows, self._remembered = self._remembered, []
            self._run.extend("remembered", rows)

    def _tick(self) -> None:
        self._mark_running()
        self.flush()
        now = time.time()
        if not self._unsampled and now - self._resources_at >= RESOURCES_INTERVAL_S:
            self._resources_at = now
            self._unsampled = list(self.scheduler.workers.values())
        if some := self._unsampled[:RESOURCES_AT_ONCE]:
            del self._unsampled[:RESOURCES_AT_ONCE]
            self._run.extend("resources", self._resource_rows(now, some))

    # Tasks --------------------------------------------------------------------------------------

    def submitted(self, calls: list[LoggedTask]) -> None:
        middle, now = self._middle(calls[0]), time.time()
        ready = f'{middle}"worker":null,"state":"submitted","timestamp":{now}}}'
        blocked = f'{middle}"worker":null,"state":"blocked","timestamp":{now}}}'
        for call in calls:
            if call.recorded:
                continue
            call.recorded = True
            if call.bundle is None or not call.bundle["rows"]:
                inputs, end = call.task.dependencies, ready
                if inputs and not all(each.who_has for each in inputs):
                    call.shown_blocked, end = True, blocked
                self._lines.append(f'{{"task_id":{quoted(str(call.key))}{end}')
                if len(self._lines) >= MOST_LINES:
                    self.flush()

    def _head(self, call: LoggedTask) -> str:
        """Return the common start of a task's rows."""
        return f'{{"task_id":{quoted(str(call.key))}{self._middle(call)}'

    def _middle(self, call: LoggedTask) -> str:
        """Return name and tag in a task's rows."""
        for resource in call.task.resource_restrictions or ():
            if resource in self._tags:
                return _middle_of_head(call.name, resource)
        return _middle_of_head(call.name, None)

    def ready(self, call: LoggedTask) -> None:
        """Record when a task is no longer blocked, and when it runs again."""
        if call.shown_blocked:
            call.shown_blocked = False
            state = f'"worker":null,"state":"submitted","timestamp":{time.time()}'
            self._lines.append(f"{self._head(call)}{state}}}")
        last = self._last_ended
        if last is not None and call.recorded and last in call.task.dependencies:
            # The task became ready because this one, the last of those it needs, has finished.
            call.after = f',"after":{quoted(str(last.key))}'
        if call.state == "queued" or call.is_known:
            return
        call.recorded = True  # it may run again: its result was lost, or a client retries it
        if call.shown_running:
            call.shown_running = False
        if call.again is not None:
            if call.ran_for is not None:  # it started again, and was lost again
                self._rerun(call)
            call.ran_for, call.again = call.again, None

    def _rerun(self, call: LoggedTask) -> None:
        assert call.ran_for is not None
        (reason, worker), call.ran_for = call.ran_for, None
        head, repeats = self._head(call), 1
        if call.bundle is not None:  # its tasks from a lost bundle start again
            repeats = int(call.bundle.get("again", 1))
            head = head_in_bundle(head, 0) if call.bundle["rows"] else head
        self._log.reruns[str(reason)] += repeats
        count = f',"count":{repeats}' if repeats > 1 else ""
        self._lines.append(
            f'{head}"worker":null,"state":"{RERUN}","timestamp":{time.time()},'
            f'"reason":"{reason}","lost":{encoded(worker)}{count}}}'
        )

    def ended(self, end: EndedTask) -> None:
        if end.succeeded:
            self._last_ended = end.call.task
            self._end(end.call, "found" if end.is_hit else "succeeded", end)
            return
        self._end(end.call, "cancelled" if end.runs_again else "failed", end)

    def remembered(self, heard: HeardOutcomes) -> None:
        self._remembered += heard.rows(time.time())

    def forgotten(self, call: LoggedTask) -> None:
        self._last_ended = None if self._last_ended is call.task else self._last_ended
        self._end(call, "cancelled", None)

    def _end(self, call: LoggedTask, state: str, end: EndedTask | None) -> None:
        if not call.recorded:
            return
        after, call.after, call.recorded = call.after, "", False
        head = self._head(call)
        worker = "null" if end is None or end.worker is None else encoded(end.worker)
        measured = NOT_MEASURED if end is None else end.measured
        bundle = measured.bundle
        if call.ran_for is not None:
            self._settle_again(call, end)
        # A bundle (a batch of tasks) has no rows if its tasks have their own.
        silent = call.bundle is not None and call.bundle["rows"]
        if measured.began is not None and not call.shown_running and not silent:
            begun = f'"state":"running","timestamp":{measured.began}'
            self._lines.append(f'{head}"worker":{worker},{begun}}}')
        if end is not None and (bundle is not None or not end.succeeded) and end.failures:
            self._run.extend("failures", failure_rows(end))
        cancelled = call.calls if end is None and call.is_cancelled_bundle else 0
        cancelled += (bundle or NO_CALLS).get("cancelled", 0)
        if len(self._lines) >= MOST_LINES:
            self.flush()
        if silent and state == "failed" and bundle is None:  # a task that was given up
            head = head_in_bundle(head, 0)
        elif silent:
            for number, told in enumerate(end.in_bundle() if end is not None and bundle else ()):
                self._lines.append(f"{last_row(head_in_bundle(head, number), worker, *told)}}}")
            if not cancelled:
                return
            bundle = NO_CALLS
        values = {} if end is None else end.measurements
        ended_at = measured.ended or time.time()
        row = last_row(head, worker, state, ended_at, values, call.input_bytes)
        counts = call.bundle is not None and (bundle is not None or state == "cancelled")
        told_of = told_of_bundle(bundle or NO_CALLS, cancelled) if counts else ""
        self._lines.append(f"{row}{after}{told_of}}}")

    def _settle_again(self, call: LoggedTask, end: EndedTask | None) -> None:
        """Record that a task ran again, unless it was lost before it started."""
        killed = end is not None and end.killed
        started = end is not None and end.measured.began is not None
        if started or call.again is not None or (killed and call.bundle is None):
            self._rerun(call)
        elif killed and call.ran_for is not None:
            self._lost[call.key] = call.ran_for  # the next event reports if it had started
        call.ran_for = None

    def _mark_running(self) -> None:
        """Record tasks as running according to the workers' last heartbeats."""
        now = time.time()
        for ws in self.scheduler.workers.values():
            for task, since in ws.executing.items():
                if task.processing_on is not ws:
                    continue  # it ended after the heartbeat, and may be forgotten
                call = self._log.call(task.key)
                if not call.recorded:
                    continue
                call.seen_running = True
                if call.ran_for is not None:
                    self._rerun(call)
                if not call.shown_running and (call.bundle is None or not call.bundle["rows"]):
                    call.shown_running = True
                    self._lines.append(
                        f'{self._head(call)}"worker":{encoded(str(ws.name))},"state":"running",'
                        f'"timestamp":{now - since}}}'
                    )

    # Workers ------------------------------------------------------------------------------------

    def event(self, event: Mapping[str, Any]) -> None:
        """Write a manager's event, and keep whether it is the removal of a worker."""
        if event["stream"] == "workers" and event["event"] != "billed":
            record, removed = self._log.workers.of(event["worker"]), event["event"] == "removed"
            record.managed = None if removed and record.state is None else removed
        self._write(event)

    def _write(self, event: Mapping[str, Any]) -> None:
        row = dict(event)
        self._run.extend(row.pop("stream"), [row])

    def worker_added(self, worker: WorkerState) -> None:
        started = worker_event("started", str(worker.name), self._tag(worker) or "")
        self._write({**started, "host": worker.host} if worker.host else started)

    def _tag(self, worker: WorkerState) -> str | None:
        return next((tag for tag in worker.resources if tag in self._tags), None)

    def worker_removed(self, address: str) -> None:
        """Record that a worker has left, unless its manager reports the departure."""
        record = self._log.workers.at(address)
        if record is None or record.state is None:
            return
        if record.managed is None:
            tag = self._tag(record.state) or ""
            self._write(worker_event("removed", record.name, tag, "it left the scheduler"))
        elif record.managed:
            record.managed = None

    def worker_lost(self, lost: LostWorker) -> None:
        for key in self._lost.keys() & set(lost.running):
            call, ran_for = self._log.call(key), self._lost.pop(key)
            if call.again is not None:
                call.ran_for = ran_for
                self._rerun(call)
        if lost.expected or not (keys := [*lost.running, *lost.computed]):
            return
        name = self._log.workers.name_at(lost.address) or lost.address
        logger.debug("worker %s was lost with %d tasks", name, len(keys))
        again = "1 task runs" if len(keys) == 1 else f"{len(keys)} tasks run"
        listed = [str(key) for key in keys[:LISTED_TASKS]]
        told = {"phase": "run", "task_id": listed[0], "tasks": listed, "worker": name}
        words = f"worker {name} was lost; {again} again elsewhere"
        self._write(failure_event("WorkerLost", words, **told, traceback=None))

    def _resource_rows(self, now: float, some: list[WorkerState]) -> list[dict[str, Any]]:
        return [
            {
                "timestamp": now,
                "worker": str(ws.name),
                "tag": self._tag(ws) or "",
                "cpu_percent": ws.metrics.get("cpu"),
                "memory": ws.metrics.get("memory"),
                "limit": ws.memory_limit or None,
            }
            for ws in some
            if ws.address in self.scheduler.workers
        ]


# Task rows ----------------------------------------------------------------------------------------

#: Number of pairs of task name and tag whose encoded row start is cached.
KEPT_HEADS = 1000
#: Counts for a bundle that its client withdrew, cancelled, or lost with its worker.
NO_CALLS: Mapping[str, Any] = {"calls": 0, "failed": 0, "total_s": 0.0, "quantiles_s": ()}

#: Encodes a value as JSON.
encoded = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
#: Encodes a string in the same way, much faster.
quoted = json.encoder.encode_basestring


@lru_cache(KEPT_HEADS)
def _middle_of_head(name: str, tag: str | None) -> str:
    return f',"task_name":{encoded(name)},"tag":{encoded(tag)},'


def told_of_bundle(bundle: Mapping[str, Any], cancelled: int = 0) -> str:
    """Return the last part of a bundle's encoded row: counts and durations of its tasks."""
    quantiles = zip(SHARES, bundle["quantiles_s"], strict=False)
    told = {
        "count": bundle["calls"],
        "failed": bundle["failed"],
        "total_s": round(bundle["total_s"], 6),
        "quantiles_s": {f"{share:g}": round(value, 6) for share, value in quantiles},
    }
    if bundle.get("found"):
        told["found"] = bundle["found"]
    if cancelled:
        told["cancelled"] = cancelled
    return f',"calls":{encoded(told)}'


def head_in_bundle(head: str, number: int) -> str:
    """Return the start of a bundled task's rows, derived from the start of its bundle's rows."""
    return head.replace('","task_name"', f'/{number}","task_name"', 1)


#: Measurements in the last row of a task, in their order.
MEASURED = ("queued_s", "duration_s", "transfer_s", "cpu_s", "peak_memory", "nbytes")


def last_row(
    head: str,
    worker: str,
    state: str,
    stamp: float,
    values: Mapping[str, float | None],
    input_bytes: int = 0,
) -> str:
    """Return a task's last row without its end. ``stamp`` is in epoch seconds."""
    row = f'{head}"worker":{worker},"state":"{state}","timestamp":{stamp}'
    for key in MEASURED:
        value = values.get(key)
        if value is None:
            row += f',"{key}":null'
        else:
            row += f',"{key}":{value:.6f}' if isinstance(value, float) else f',"{key}":{value}'
    return f'{row},"input_bytes":{input_bytes}'


# Failure rows -------------------------------------------------------------------------------------


def failure_rows(end: EndedTask) -> list[dict[str, Any]]:
    """Return a row of ``failures.jsonl`` for each failed task in one report."""
    if not end.failures:
        return []
    now = time.time()
    names = {"task_id": str(end.call.key), "task_name": end.call.name, "tag": end.call.tag}
    return [
        {
            "failure_class": failed.failure_class,
            "message": failed.message,
            "timestamp": now,
            "count": failed.count,
            "details": {
                "phase": "run",
                **names,
                "position": failed.position,
                **failed.details.to_dict(),
                "traceback": failed.traceback,
            },
        }
        for failed in end.failures
    ]


# Files of a run -----------------------------------------------------------------------------------

#: Largest number of bytes in one answer.
ANSWER_BYTES = 1 << 22
#: Suffix of files to which rows are appended. Other files are replaced as a whole.
STREAM = ".jsonl"


class RunFiles:
    """Serves additions to a run's files. ``flush`` writes the buffered rows first."""

    def __init__(self, scheduler: Scheduler, directory: Path, flush: Callable[[], object]) -> None:
        self._directory = directory
        self._flush = flush
        #: Writes the rows about costs up to now.
        self.bill: Callable[[], object] = lambda: None
        offer(scheduler, {Handler.RUN_FILES: self.read})

    async def read(self, known: Mapping[str, int], *, costs: bool = False) -> dict[str, Any]:
        """Return ``run``, the directory's name, and ``files``, the parts that a reader lacks.
        ``known`` maps file names to the reader's sizes. Streams are sent from there on, at most 4
        MiB at once. Other files are sent completely if their size differs. With ``costs``, the
        files contain the costs so far instead of those up to the last full minute.
        """
        if costs:
            self.bill()
        self._flush()
        files = await asyncio.to_thread(_added, self._directory, known)
        return {"run": self._directory.name, "files": files}


def _added(directory: Path, known: Mapping[str, int]) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    left = ANSWER_BYTES
    for path in sorted(directory.iterdir()):
        if not path.is_file() or path.name.startswith("."):
            continue
        have, size = known.get(path.name, -1), path.stat().st_size
        if have == size:
            continue
        if path.suffix != STREAM:
            found[path.name] = path.read_bytes()
            continue
        with path.open("rb") as file:
            file.seek(max(0, have))
            data = file.read(left)
        left -= len(data)
        if data or have < 0:
            found[path.name] = data
    return found
