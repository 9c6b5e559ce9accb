"""Facts about the failed tasks whose futures clients still hold."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from distributed import Scheduler

from scalable.protocol.handlers import Handler, offer
from scalable.scheduler.ledger import Call, EndedCall, Ledger, Listener


class Failures(Listener):
    """Keeps the facts about failed tasks until the scheduler forgets the tasks."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._known: dict[Any, dict[str, Any]] = {}
        Ledger.of(scheduler).listen(self)
        offer(scheduler, {Handler.FAILURES: self.failures})

    def failures(self, keys: Iterable[Any]) -> list[dict[str, Any]]:
        """Return name, tag, arguments, worker and attempts of each task, as far as known."""
        found: list[dict[str, Any]] = []
        for key in keys:
            task = self._scheduler.tasks.get(key)
            if task is None:
                found.append({})
                continue
            call = Ledger.of(self._scheduler).call(key)
            names = {"task_name": call.name, "tag": call.tag}
            # A task that failed only because of another one never ran.
            found.append({**names, **self._known.get(key, {"tries": 0})})
        return found

    def ended(self, end: EndedCall) -> None:
        if end.succeeded or end.call.bundle is not None or not end.failures:
            return
        details = end.failures[0].details
        told = {"arguments": details.arguments, "worker": details.worker, "tries": details.tries}
        self._known[end.call.key] = told

    def ready(self, call: Call) -> None:
        """Drop the facts about a task that runs again."""
        self._known.pop(call.key, None)

    def forgotten(self, call: Call) -> None:
        self._known.pop(call.key, None)

    def restarted(self, scheduler: Scheduler) -> None:  # noqa: ARG002
        self._known.clear()
