"""Spans of the calls of a run, from the events of a scheduler's ledger."""

from __future__ import annotations

from scalable.scheduler.failed_calls import GivenUp
from scalable.scheduler.ledger import EndedCall, Listener
from scalable.spec import FailedCall
from scalable.telemetry.tracing import RunTrace, Work


class TracedCalls(Listener):
    """Adds a span for each call that ends to the trace of a run.

    The calls of a bundle (a batch of calls that a client sends as one task) have spans of their own
    where the worker reports each of them, and one together otherwise.

    Parameters
    ----------
    trace
        The trace.
    """

    def __init__(self, trace: RunTrace) -> None:
        self._trace = trace

    def ended(self, end: EndedCall) -> None:
        """Add the span of a call, or the spans of the calls of a bundle; a hit has none."""
        call, timed = end.call, end.measured
        if not end.ran:
            return
        attributes: dict[str, str | int | float] = {
            "scalable.task": call.name,
            "scalable.tag": call.tag or "",
            "scalable.worker": end.worker or "",
            "scalable.key": str(call.key),
        }
        failures = {failed.position: failed for failed in end.failures}
        if timed.bundle is not None and timed.bundle["rows"]:
            for position, (state, row) in enumerate(timed.bundle["rows"]):
                if state == "found":
                    continue
                began, duration_s, *_ = row
                failed = failures.get(position)
                told = ("Exception", "") if failed is None else _told(failed)
                work = Work(
                    call.name, began, began + duration_s, told if state == "failed" else None
                )
                self._trace.add(work, {**attributes, "scalable.position": position})
            return
        failure = next((_told(failed) for failed in end.failures), None)
        if timed.bundle is not None:
            attributes["scalable.calls"] = timed.bundle["calls"]
            attributes["scalable.failed_calls"] = timed.bundle["failed"]
        elif not end.succeeded and failure is None:  # it failed for lack of another call's result
            failure = end.failure()
        if call.ready_at is not None and timed.began is not None:
            queue_s = max(0.0, timed.began - call.ready_at - timed.transfer_s)
            attributes["scalable.queue_s"] = round(queue_s, 6)
        self._trace.add(Work(call.name, timed.began, timed.ended, failure), attributes)

    def given_up(self, given_up: GivenUp) -> None:
        """Add a span for each call of a lost bundle that its client has given up."""
        call = given_up.call
        for failed in given_up.failures:
            attributes = {
                "scalable.task": call.name,
                "scalable.tag": call.tag or "",
                "scalable.worker": failed.details.worker or "",
                "scalable.key": str(call.key),
            }
            self._trace.add(Work(call.name, None, None, _told(failed)), attributes)


def _told(failed: FailedCall) -> tuple[str, str]:
    return failed.failure_class, failed.message
