"""Moments at which the worker count of a pool is decided. No I/O.

Without an event, expectations change in proportion to the time. A decision is therefore repeated
after a share of the time since the last event.
"""

from __future__ import annotations

from dataclasses import replace

from scalable.scaling.pool_policy import PoolDecision, PoolView

#: Share of the time since the last event for which a decision holds.
HOLDS_SHARE = 0.05

_State = tuple[object, ...]


class Unchanged:
    """Last computed decision about the tasks of a graph, and the state that led to it."""

    def __init__(self) -> None:
        self._state: _State = ()
        self._decision: PoolDecision | None = None
        #: Times of the last event and of the last computed decision, in seconds.
        self._event_s = self._decided_s = 0.0

    def decision(self, view: PoolView) -> PoolDecision | None:
        """Return the last decision if it still holds, otherwise None."""
        if self._decision is None or _state(view) != self._state:
            return None
        since = view.now - self._decided_s
        if since > HOLDS_SHARE * (self._decided_s - self._event_s):
            return None
        predicted_s = self._decision.predicted_s
        left = None if predicted_s is None else max(0.0, predicted_s - since)
        return replace(self._decision, predicted_s=left)

    def keep(self, view: PoolView, decision: PoolDecision) -> None:
        state = _state(view)
        if state != self._state:
            self._state, self._event_s = state, view.now
        self._decided_s = view.now
        # A decision that changes the number of workers does not hold, since it is an event.
        stays = decision.workers == view.busy + view.idle + len(view.arriving)
        self._decision = decision if stays else None


def _state(view: PoolView) -> _State:
    """Return the part of a view that events change, but not time."""
    running = {kind: len(elapsed) for kind, elapsed in view.running.items()}
    bounds = view.minimum, view.maximum, view.slots
    workers = view.busy, view.idle, len(view.arriving)
    # A task that finishes and one that is submitted instead of it are two events.
    waiting = sum(count for _, _, count in view.coming)
    return *bounds, *workers, view.submitted, dict(view.queued), running, waiting
