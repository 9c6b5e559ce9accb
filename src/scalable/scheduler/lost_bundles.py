"""Bundles lost with their workers: which of their tasks run again, and which do not.
A bundle is a batch of tasks that a client sends as one Dask task. The client of a lost bundle
resends its tasks in other bundles that name the lost one, or gives them up.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from distributed import Scheduler
from distributed.scheduler import TaskState, WorkerState

from scalable.protocol.dask_seams.reruns import begun_on
from scalable.protocol.dask_seams.scheduler import LostWorker
from scalable.protocol.measured import BUNDLE_ANNOTATION
from scalable.scheduler.failed_calls import OUT_OF_MEMORY, GivenUp
from scalable.scheduler.ledger import Call, EndedCall, Ledger, Listener
from scalable.spec import FailedCall, FailureDetails
from scalable.telemetry.reruns import Reason

#: Number of lost bundles that are kept.
REMEMBERED = 10_000
#: Maximum number of characters of a string about a task that was given up.
LONGEST_TEXT = 4_000


class _Before(NamedTuple):
    """Number of earlier starts of a task, and why it has to run again."""

    tries: int
    reason: Reason
    worker: str | None


class LostBundles(Listener):
    """Keeps lost bundles, and notifies the ledger which tasks run again or are given up."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._workers: dict[str, WorkerState] = {
            ws.address: ws for ws in scheduler.workers.values()
        }
        self._lost: dict[Any, _Before] = {}
        self._given_up: set[tuple[Any, int]] = set()

    # Events of the ledger -------------------------------------------------------------------------

    def submitted(self, calls: list[Call]) -> None:
        """Record that a bundle runs tasks again that started in a lost bundle."""
        for call in calls:
            before = self._before(call)
            if before is not None:
                call.tries, call.again = before.tries, (before.reason, before.worker)
                # Until it has started, its tasks run again for the same reason.
                self._remember(call.key, before)

    def ended(self, end: EndedCall) -> None:
        """Keep a bundle that failed because its worker ran out of memory."""
        if not end.succeeded and end.call.bundle is not None and end.failure()[0] == OUT_OF_MEMORY:
            self._note([end.call], Reason.WORKER_LOST, end.worker)

    def forgotten(self, call: Call) -> None:
        if call.bundle is not None and self._given_up:
            self._given_up = {given for given in self._given_up if given[0] != call.key}

    def worker_added(self, worker: WorkerState) -> None:
        self._workers[worker.address] = worker

    def worker_removed(self, address: str) -> None:
        self._workers.pop(address, None)

    def worker_lost(self, lost: LostWorker) -> None:
        """Keep the lost worker's bundles that had started or whose results were there."""
        worker = self._workers.get(lost.address)
        if worker is None:
            return
        assigned = self._known(lost.running)
        begun = [task.key for task in begun_on(worker, assigned)]
        bundles = [self._call(task) for task in assigned if _is_bundle(task)]
        reason = Reason.TAKEN_BACK if lost.expected else Reason.WORKER_LOST
        self._note([call for call in bundles if call.key in begun], reason, str(worker.name))
        computed = [self._call(task) for task in self._known(lost.computed) if _is_bundle(task)]
        self._note(computed, Reason.RESULT_LOST, str(worker.name))

    def restarted(self, scheduler: Scheduler) -> None:  # noqa: ARG002
        self._lost.clear()
        self._given_up.clear()

    # Messages of clients --------------------------------------------------------------------------

    def give_up(self, key: Any, calls: Sequence[Sequence[Any]], client: str) -> None:
        """Record tasks of a lost bundle as failed, because their client gave them up.
        Each element of ``calls`` has the position in the bundle, class and message of the error,
        and the arguments as a string or None.
        """
        task = self._scheduler.tasks.get(key)
        if task is None or not _is_bundle(task):
            return
        if all(other.client_key != client for other in task.who_wants or ()):
            return
        call, before = self._call(task), self._lost.get(key)
        count = int((call.bundle or {}).get("calls", 1))
        failed = []
        for position, kind, message, arguments in calls:
            if not 0 <= int(position) < count or (key, int(position)) in self._given_up:
                continue
            self._given_up.add((key, int(position)))
            details = FailureDetails(
                arguments=None if arguments is None else str(arguments)[:LONGEST_TEXT],
                worker=None if before is None else before.worker,
                tries=1 if before is None else before.tries,
            )
            texts = str(kind)[:LONGEST_TEXT], str(message)[:LONGEST_TEXT]
            failed.append(FailedCall(*texts, None, details, int(position)))
        if failed:
            Ledger.of(self._scheduler).give_up(GivenUp(call, tuple(failed)))

    # ----------------------------------------------------------------------------------------------

    def _before(self, call: Call) -> _Before | None:
        """Return the facts about the lost bundle whose tasks a bundle resends, or None."""
        after = (call.bundle or {}).get("after")
        return None if after is None else self._lost.get(after)

    def _note(self, calls: Iterable[Call], reason: Reason, worker: str | None) -> None:
        for call in calls:
            before = self._before(call)
            tries = 1 if before is None else before.tries + 1
            self._remember(call.key, _Before(tries, reason, worker))
            if call.again is None:  # for other listeners: it had started and was lost
                call.begin_again(reason, worker)

    def _remember(self, key: Any, before: _Before) -> None:
        self._lost[key] = before
        while len(self._lost) > REMEMBERED:
            del self._lost[next(iter(self._lost))]

    def _known(self, keys: Iterable[Any]) -> list[TaskState]:
        return [self._scheduler.tasks[key] for key in keys if key in self._scheduler.tasks]

    def _call(self, task: TaskState) -> Call:
        return Ledger.of(self._scheduler).call(task.key)


def _is_bundle(task: TaskState) -> bool:
    return BUNDLE_ANNOTATION in (task.annotations or {})
