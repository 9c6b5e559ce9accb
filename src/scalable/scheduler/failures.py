"""Facts about the failed calls whose futures clients still hold."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from distributed import Scheduler

from scalable.protocol.handlers import Handler, offer
from scalable.scheduler.ledger import Call, EndedCall, Ledger, Listener


class Failures(Listener):
    """Keeps the facts about failed calls until the scheduler forgets the calls.

    Parameters
    ----------
    scheduler
        Scheduler of the calls.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._known: dict[Any, dict[str, Any]] = {}
        Ledger.of(scheduler).listen(self)
        offer(scheduler, {Handler.FAILURES: self.failures})

    def failures(self, keys: Iterable[Any]) -> list[dict[str, Any]]:
        """Return task name, tag, arguments, worker and tries of each call, as far as known."""
        found: list[dict[str, Any]] = []
        for key in keys:
            task = self._scheduler.tasks.get(key)
            if task is None:
                found.append({})
                continue
            call = Ledger.of(self._scheduler).call(key)
            names = {"task_name": call.name, "tag": call.tag}
            # A call that failed only because of another one never ran.
            found.append({**names, **self._known.get(key, {"tries": 0})})
        return found

    def ended(self, end: EndedCall) -> None:
        """Keep the facts about a failed call."""
        if end.succeeded or end.call.bundle is not None or not end.failures:
            return
        details = end.failures[0].details
        told = {"arguments": details.arguments, "worker": details.worker, "tries": details.tries}
        self._known[end.call.key] = told

    def ready(self, call: Call) -> None:
        """Forget the facts about a call that runs again."""
        self._known.pop(call.key, None)

    def forgotten(self, call: Call) -> None:
        """Forget the facts about a call."""
        self._known.pop(call.key, None)

    def restarted(self, scheduler: Scheduler) -> None:  # noqa: ARG002
        """Forget all facts."""
        self._known.clear()
