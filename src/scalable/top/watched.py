"""The last answer of a scheduler, and the events of all answers so far. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scalable.spec.overview import Events, Overview

#: Number of the latest events that are kept, by kind.
KEPT = {"decisions": 500, "failures": 500, "samples": 1_200}


class Watched:
    """Last overview of a cluster (None before the first), and its events from many answers."""

    def __init__(self) -> None:
        self.overview: Overview | None = None
        #: Number of the last event.
        self.seq = 0
        self._events: dict[str, list[Mapping[str, Any]]] = {kind: [] for kind in KEPT}

    def take(self, overview: Overview, events: Events) -> None:
        """Add an answer. The events of an earlier scheduler are dropped."""
        before = self.overview
        started = None if before is None else before.cluster.get("started_at")
        another = before is not None and started != overview.cluster.get("started_at")
        for kind, most in KEPT.items():
            # A new scheduler numbers its events from the start, so that all are requested again.
            kept = [] if another else [*self._events[kind], *getattr(events, kind)]
            self._events[kind] = kept[-most:]
        self.seq = 0 if another else events.seq
        self.overview = overview

    @property
    def decisions(self) -> list[Mapping[str, Any]]:
        """Changes of desired worker counts, the oldest first."""
        return self._events["decisions"]

    @property
    def failures(self) -> list[Mapping[str, Any]]:
        """Rows about failed tasks, the oldest first."""
        return self._events["failures"]

    @property
    def samples(self) -> list[Mapping[str, Any]]:
        return self._events["samples"]
