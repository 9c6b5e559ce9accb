"""Views of single tasks, from the scheduler, its recent events and the task's worker."""

from __future__ import annotations

import ast
import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from distributed import Scheduler
from distributed.scheduler import TaskState, WorkerState

from scalable import settings
from scalable.dask_compat.tasks import arguments_of
from scalable.model.overview import TaskView
from scalable.protocol.failures import shown_arguments
from scalable.protocol.handlers import Handler, WorkerHandler, offer, request
from scalable.scheduler.explaining import Explainer
from scalable.scheduler.overviews import RecentEvents
from scalable.scheduler.task_log import TaskLog, running_tasks

logger = logging.getLogger("scalable.scheduler")

#: Seconds that a worker has to answer.
ASK_TIMEOUT_S = 2.0
#: Maximum number of characters of a key that is looked up, and of a string in a view.
LONGEST_KEY, LONGEST_TEXT = 10_000, 20_000
_NOT_FAILED = frozenset({"running", "queued", "blocked", "done"})
_NO_ARGUMENTS = "arguments are not shown: SCALABLE_RECORD_ARGUMENTS is off"


@dataclass(frozen=True, repr=False)
class result:  # noqa: N801 - shown as a word, as in ``(result(of='load-1'), 2)``
    """Result of another task, in the arguments of a task that has not started."""

    of: str


class _ResultMapping:
    """Mapping that returns a placeholder (:class:`result`) for each key."""

    def get(self, key: Any, _: Any = None) -> result:
        return result(str(key)[:200])


class TaskViews:
    """Builds views of the tasks of one cluster. Nothing is unpickled and no user code runs."""

    def __init__(self, scheduler: Scheduler, explainer: Explainer, recent: RecentEvents) -> None:
        self._scheduler, self._explainer, self._recent = scheduler, explainer, recent
        offer(scheduler, {Handler.CALL: self.call})

    async def call(self, key: str, position: int | None = None) -> dict[str, Any]:
        """Return the view of a task, as :meth:`TaskView.to_dict` does.
        ``key`` may be a bundle's. ``position`` is then a task's, or None for the running task.
        """
        task = self._task(key)
        notes: list[str] = []
        found = {"key": key[:LONGEST_KEY], "position": position, **self._measured(task, key)}
        if task is not None:
            (told,) = (await self._explainer.explain(key=task.key))["tasks"]
            found |= {name: told[name] for name in ("state", "sentence", "advice")}
            found |= self._known(task, notes)
        elif found.get("state") is None:
            notes.append("the scheduler has no record of this task")
        else:
            notes.append("the scheduler keeps only the times of this task")
        single_lives = position is None and found.get("state") in _NOT_FAILED
        if not single_lives and (failure := self._failure(key, position)) is not None:
            found |= failure
        known = TaskLog.of(self._scheduler).workers.get(found.get("worker") or "")
        worker = None if known is None else known.state
        if task is not None and task.processing_on is not None:
            worker = task.processing_on
        if worker is not None:
            told = await self._asked(worker, key if task is None else task.key, notes)
            if found.get("output") is None:
                found["output"] = told.get("output")
            if position is None or told.get("position") == position:
                names = [n for n in ("arguments", "position") if told.get(n) is not None]
                found |= {name: told[name] for name in names}
        if position is not None or found.get("bundle"):
            notes.append("the task was sent in a bundle: the times are those of the whole bundle")
        if found.get("arguments") is None and task is not None and found.get("bundle"):
            notes.append("arguments of a bundle are known only while one of its tasks runs")
        short = {name: _bounded(name, value) for name, value in found.items()}
        return TaskView(**short, notes=tuple(notes)).to_dict()

    def _task(self, key: str) -> TaskState | None:
        task = self._scheduler.tasks.get(key)
        if task is None and key.startswith("(") and len(key) <= LONGEST_KEY:  # repr of a tuple
            try:
                task = self._scheduler.tasks.get(ast.literal_eval(key))
            except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
                return None
        return task

    def _measured(self, task: TaskState | None, key: str) -> dict[str, Any]:
        log = TaskLog.of(self._scheduler)
        row = log.profile(key if task is None else task.key)
        if row is None:
            return {}
        duration = row["duration_s"]
        began = None if duration is None else row["timestamp"] - duration
        told = {name: row[name] for name in ("queued_s", "transfer_s", "cpu_s", "peak_memory")}
        state = "done" if row["state"] == "succeeded" else "failed"
        told |= {"name": row["task_name"], "tag": row["tag"], "worker": row["worker"]}
        return told | {
            "state": state, "began": began, "ended": row["timestamp"], "duration_s": duration,
        }  # fmt: skip

    def _known(self, task: TaskState, notes: list[str]) -> dict[str, Any]:
        call = TaskLog.of(self._scheduler).call(task.key)
        told: dict[str, Any] = {"name": call.name, "tag": call.tag}
        told["bundle"] = 0 if call.bundle is None else call.calls
        began = task.processing_on is not None or task.state in ("memory", "erred")
        told["tries"] = call.tries + began
        if call.repeated is not None:
            reason, lost = call.repeated
            told["again"] = f"{reason}: {lost}" if lost else str(reason)
        if task.processing_on is not None:
            told["worker"] = str(task.processing_on.name)
            since_s = dict(running_tasks(task.processing_on)).get(task)
            if since_s is not None:
                told |= {"began": time.time() - since_s, "duration_s": since_s}
        if task.state == "memory" and task.nbytes >= 0:
            told["result_bytes"] = int(task.nbytes)
        if call.bundle is None:
            if not settings.records_arguments():
                notes.append(_NO_ARGUMENTS)
            elif (given := arguments_of(task.run_spec, _ResultMapping())) is not None:
                told["arguments"] = shown_arguments(*given)
        return told

    def _failure(self, key: str, position: int | None) -> dict[str, Any] | None:
        for row in self._recent.failures():
            details: Mapping[str, Any] = row.get("details") or {}
            if details.get("task_id") != key or details.get("position") != position:
                continue
            names = ("arguments", "frame", "stderr", "traceback", "output", "worker", "tries")
            told = {name: details[name] for name in names if details.get(name) is not None}
            told |= {"failure_class": row["failure_class"], "message": row["message"]}
            told |= {"name": details.get("task_name"), "tag": details.get("tag")}
            return told | {"position": details.get("position"), "state": "failed"}
        return None

    async def _asked(self, worker: WorkerState, key: Any, notes: list[str]) -> Mapping[str, Any]:
        """Return the worker's facts about a task. Empty if the worker does not answer in time."""
        try:
            told = request(self._scheduler.rpc(worker.address), WorkerHandler.SHOWN_CALL, key=key)
            return dict(await asyncio.wait_for(told, ASK_TIMEOUT_S) or {})  # None from Dask's own
        except (OSError, TimeoutError, AttributeError) as error:
            logger.debug("worker %s sends no report on its task: %r", worker.name, error)
            notes.append("the worker does not answer: arguments and output may be missing")
            return {}


def _bounded(name: str, value: Any) -> Any:
    """Return a fact, shortened if it is a string. Tracebacks and output keep their tail."""
    if not isinstance(value, str):
        return value
    tail = name in ("traceback", "output", "stderr")
    return value[-LONGEST_TEXT:] if tail else value[:LONGEST_TEXT]
