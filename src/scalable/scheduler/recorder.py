"""Writes task, worker and resource rows of a run, beside the scheduler.

Rows are made of what the scheduler itself sees. They are encoded by hand and written in batches:
the recorder's bar is 5 % of the scheduler's CPU time on tasks that do nothing.
"""

from __future__ import annotations

import ast
import json
import pickle
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from distributed import Scheduler, SchedulerPlugin
from distributed.scheduler import TaskState
from tornado.ioloop import PeriodicCallback

from scalable.protocol.dask_seams.scheduler import LostWorker, startstops
from scalable.protocol.measured import BUNDLE_ANNOTATION, SHARES, TASK_ANNOTATION, measured

FLUSH_INTERVAL_S = 0.5
RESOURCES_INTERVAL_S = 5.0
LISTED_TASKS = 20

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class RunWriter(Protocol):
    """Where rows go: a run directory, or a list in a test."""

    def extend(self, stream: str, rows: Sequence[Mapping[str, Any] | str]) -> None:
        """Add rows, or lines that are encoded already."""


class _Pending:
    """A task between its submission and its end."""

    __slots__ = ("bundled", "head", "ready_at", "running", "silent")

    def __init__(self, head: str, ready_at: float, bundle: Mapping[str, Any] | None) -> None:
        self.head = head
        self.ready_at = ready_at
        self.bundled = bundle is not None
        # The calls of a bundle may have rows of their own: then it has none.
        self.running = self.silent = bundle is not None and bundle["rows"]


class Recorder(SchedulerPlugin):
    """Turns the scheduler's transitions into rows.

    Parameters
    ----------
    scheduler
        Whose tasks are recorded.
    run
        Where the rows go.
    tags
        Names of the pools: a task's or worker's tag is the one of these among its resources.
    """

    name = "scalable-recorder"

    def __init__(self, scheduler: Scheduler, run: RunWriter, tags: Iterable[str]) -> None:
        self.scheduler = scheduler
        self._run = run
        self._tags = frozenset(tags)
        self._lines: list[str] = []
        self._pending: dict[Any, _Pending] = {}
        self._heads: dict[tuple[str, str | None], str] = {}
        self._managed: set[str] = set()
        self._workers: dict[str, tuple[str, str | None]] = {}
        self._flushing = PeriodicCallback(self._tick, FLUSH_INTERVAL_S * 1000)
        self._resources_at = 0.0
        for address in scheduler.workers:
            self.add_worker(scheduler, address)

    def start_flushing(self) -> None:
        """Write what has gathered, twice a second, in the running event loop."""
        self._flushing.start()

    async def close(self) -> None:
        """Write the rest; runs when the scheduler closes."""
        self.stop()

    def stop(self) -> None:
        """Write the rest and end."""
        self._flushing.stop()
        self.flush()

    def flush(self) -> None:
        """Write what has gathered."""
        if self._lines:
            lines, self._lines = self._lines, []
            self._run.extend("tasks", lines)

    def _tick(self) -> None:
        self._mark_running()
        self.flush()
        now = time.time()
        if now - self._resources_at >= RESOURCES_INTERVAL_S:
            self._resources_at = now
            self._run.extend("resources", self._resource_rows(now))

    # Tasks --------------------------------------------------------------------------------------

    def update_graph(self, scheduler: Scheduler, *, tasks: list[Any], **_: Any) -> None:
        """Record new tasks as submitted."""
        now = time.time()
        for key in tasks:
            task = scheduler.tasks.get(key)
            if task is None or key in self._pending or task.state in ("memory", "erred"):
                continue
            entry = self._pending[key] = self._entry(task, now)
            if not entry.silent:
                self._lines.append(
                    f'{entry.head}"worker":null,"state":"submitted","timestamp":{now}}}'
                )

    def _entry(self, task: TaskState, now: float) -> _Pending:
        return _Pending(self._head(task), now, (task.annotations or {}).get(BUNDLE_ANNOTATION))

    def _head(self, task: TaskState) -> str:
        tag = next((t for t in task.resource_restrictions or () if t in self._tags), None)
        name = (task.annotations or {}).get(TASK_ANNOTATION) or task.prefix.name
        middle = self._heads.get((name, tag))
        if middle is None:
            middle = f',"task_name":{_encode(str(name))},"tag":{_encode(tag)},'
            self._heads[name, tag] = middle
        return f'{{"task_id":{_encode(str(task.key))}{middle}'

    def transition(self, key: Any, start: str, finish: str, *_: Any, **details: Any) -> None:
        """Record what became of a task."""
        if finish == "memory":
            if start == "processing":
                self._end(key, "succeeded", details)
        elif finish == "erred":
            name, message = _failure_of(details.get("exception"), details.get("exception_text"))
            # The calls of a bundle that is lost with its worker are run again in another one.
            again = name == "KilledWorker" and BUNDLE_ANNOTATION in self._annotations(key)
            self._end(key, "cancelled" if again else "failed", details)
            if not again:
                self._failure(key, name, message, details)
        elif finish == "forgotten":
            if key in self._pending:
                self._end(key, "cancelled", details)
        elif finish in ("processing", "no-worker") and start in ("waiting", "released", "queued"):
            entry = self._pending.get(key)
            if entry is None:  # run again: its result was lost, or a retry was asked for
                task = self.scheduler.tasks[key]
                self._pending[key] = self._entry(task, time.time())
            elif start == "waiting":
                entry.ready_at = time.time()
                entry.running = entry.silent

    def _end(self, key: Any, state: str, details: Mapping[str, Any]) -> None:
        entry = self._pending.pop(key, None)
        if entry is None:
            return
        address = details.get("worker")
        known = self._workers.get(address) if address is not None else None
        worker = "null" if known is None else _encode(known[0])
        began, ended, transfer, cpu, memory, bundle = measured(startstops(details))
        if began is None:
            numbers = '"queued_s":null,"duration_s":null,"transfer_s":null'
            stamp: float = time.time()
        else:
            assert ended is not None
            stamp = ended
            queued = max(0.0, began - entry.ready_at - transfer)
            numbers = (
                f'"queued_s":{queued:.6f},"duration_s":{ended - began:.6f},'
                f'"transfer_s":{transfer:.6f}'
            )
            if not entry.running:
                self._lines.append(
                    f'{entry.head}"worker":{worker},"state":"running","timestamp":{began}}}'
                )
        if bundle is not None:
            self._failures_within(key, bundle, details)
        if entry.silent:
            for number, (succeeded, row) in enumerate(bundle["rows"] if bundle else ()):
                self._lines.append(_call_row(entry, worker, number, succeeded, row))
            return
        counts = entry.bundled and (bundle is not None or state == "cancelled")
        nbytes = details.get("nbytes")
        task = self.scheduler.tasks.get(key)
        size = "null" if task is None else input_bytes(task)
        self._lines.append(
            f'{entry.head}"worker":{worker},"state":"{state}","timestamp":{stamp},{numbers},'
            f'"cpu_s":{"null" if cpu is None else cpu},'
            f'"peak_memory":{"null" if memory is None else memory},'
            f'"nbytes":{"null" if nbytes is None else nbytes},"input_bytes":{size}'
            f"{_calls(bundle or NO_CALLS) if counts else ''}}}"
        )

    def _annotations(self, key: Any) -> Mapping[str, Any]:
        task = self.scheduler.tasks.get(key)
        return (task.annotations or {}) if task is not None else {}

    def _mark_running(self) -> None:
        """Record as running what the workers' heartbeats name."""
        now = time.time()
        for ws in self.scheduler.workers.values():
            for task, since in ws.executing.items():
                entry = self._pending.get(task.key)
                if entry is not None and not entry.running and task.processing_on is ws:
                    entry.running = True
                    self._lines.append(
                        f'{entry.head}"worker":{_encode(str(ws.name))},"state":"running",'
                        f'"timestamp":{now - since}}}'
                    )

    def _failure(
        self, key: Any, failure_class: str, message: str, details: Mapping[str, Any]
    ) -> None:
        task = self.scheduler.tasks.get(key)
        if task is None or task.exception_blame is not task:
            return  # it failed because another one did, which has its own row
        self._failure_row(key, failure_class, message, details, details.get("traceback_text"))

    def _failures_within(
        self, key: Any, bundle: Mapping[str, Any], details: Mapping[str, Any]
    ) -> None:
        for failure in bundle["failures"]:
            name, message = failure["failure_class"], failure["message"]
            self._failure_row(key, name, message, details, failure["traceback"])

    def _failure_row(
        self,
        key: Any,
        failure_class: str,
        message: str,
        details: Mapping[str, Any],
        traceback: str | None,
    ) -> None:
        address = details.get("worker")
        known = self._workers.get(address) if address is not None else None
        row = {
            "failure_class": failure_class,
            "message": message,
            "timestamp": time.time(),
            "details": {
                "phase": "run",
                "task_id": str(key),
                "worker": known[0] if known else None,
                "traceback": traceback,
            },
        }
        self._run.extend("failures", [row])

    # Workers ------------------------------------------------------------------------------------

    def event(self, event: Mapping[str, Any]) -> None:
        """Write what a reconciler reports of its units and pools."""
        row = dict(event)
        stream = row.pop("stream")
        if stream == "workers":
            self._managed.add(row["worker"])
        self._run.extend(stream, [row])

    def add_worker(self, scheduler: Scheduler, worker: str) -> None:
        """Record a worker that connected."""
        ws = scheduler.workers[worker]
        tag = next((t for t in ws.resources if t in self._tags), None)
        self._workers[worker] = (str(ws.name), tag)
        self._worker_row("started", str(ws.name), tag)

    def remove_worker(self, scheduler: Scheduler, worker: str, **_: Any) -> None:  # noqa: ARG002
        """Record a worker that left, unless its reconciler does."""
        name, tag = self._workers.get(worker, (worker, None))
        if name not in self._managed:
            self._worker_row("removed", name, tag, "it left the scheduler")

    def log_event(self, topic: Any, msg: Any) -> None:
        """Record which tasks a lost worker takes with it."""
        lost = LostWorker.of(topic, msg)
        if lost is None or lost.expected or not (keys := [*lost.running, *lost.computed]):
            return
        name, _ = self._workers.get(lost.address, (lost.address, None))
        row = {
            "failure_class": "WorkerLost",
            "message": f"worker {name} was lost; {len(keys)} tasks run again elsewhere",
            "timestamp": time.time(),
            "details": {
                "phase": "run",
                "task_id": str(keys[0]),
                "tasks": [str(key) for key in keys[:LISTED_TASKS]],
                "worker": name,
                "traceback": None,
            },
        }
        self._run.extend("failures", [row])

    def _worker_row(
        self, event: str, worker: str, tag: str | None, reason: str | None = None
    ) -> None:
        row = {
            "event": event,
            "worker": worker,
            "tag": tag or "",
            "timestamp": time.time(),
            "reason": reason,
        }
        self._run.extend("workers", [row])

    def _resource_rows(self, now: float) -> list[dict[str, Any]]:
        return [
            {
                "timestamp": now,
                "worker": str(ws.name),
                "tag": self._workers.get(ws.address, ("", None))[1] or "",
                "cpu_percent": ws.metrics.get("cpu"),
                "memory": ws.metrics.get("memory"),
                "limit": ws.memory_limit or None,
            }
            for ws in self.scheduler.workers.values()
        ]


def input_bytes(task: TaskState) -> int:
    """Bytes of the results that a call takes; 0 for one that takes none."""
    return sum(max(0, other.nbytes) for other in task.dependencies) if task.dependencies else 0


#: Of a bundle that was taken back, cancelled, or lost with its worker.
NO_CALLS: Mapping[str, Any] = {"calls": 0, "failed": 0, "total_s": 0.0, "quantiles_s": ()}


def _calls(bundle: Mapping[str, Any]) -> str:
    """What the row of a bundle says of its calls."""
    quantiles = zip(SHARES, bundle["quantiles_s"], strict=False)
    told = {
        "count": bundle["calls"],
        "failed": bundle["failed"],
        "total_s": round(bundle["total_s"], 6),
        "quantiles_s": {f"{share:g}": round(value, 6) for share, value in quantiles},
    }
    return f',"calls":{_encode(told)}'


def _call_row(
    entry: _Pending, worker: str, number: int, succeeded: bool, row: Sequence[Any]
) -> str:
    """The row of one call of a bundle."""
    began, duration_s, cpu_s, memory = row
    head = entry.head.replace('","task_name"', f'/{number}","task_name"', 1)
    queued = max(0.0, began - entry.ready_at)
    return (
        f'{head}"worker":{worker},"state":"{"succeeded" if succeeded else "failed"}",'
        f'"timestamp":{began + duration_s},"queued_s":{queued:.6f},"duration_s":{duration_s:.6f},'
        f'"transfer_s":0.0,"cpu_s":{cpu_s:.6f},'
        f'"peak_memory":{"null" if memory is None else memory},"nbytes":null,"input_bytes":0}}'
    )


def _plain(shown: str) -> str:
    """The text itself, where what is shown is one quoted text."""
    try:
        value = ast.literal_eval(shown)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return shown
    return value if isinstance(value, str) else shown


def _failure_of(exception: Any, text: str | None) -> tuple[str, str]:
    """Class and message of a failed task.

    Only what the scheduler pickled itself is unpickled: a worker's exception may need modules
    that the scheduler does not have.
    """
    if text is not None:
        name, _, rest = text.partition("(")
        return name, _plain(rest.removesuffix(")")) or name
    if isinstance(exception, bytes):
        error = pickle.loads(exception)  # noqa: S301 - made by this very scheduler
        return type(error).__name__, str(error)
    return "Exception", "no message"
