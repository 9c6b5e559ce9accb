"""The last answer of a scheduler, and the events of all answers so far. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scalable.spec.overview import Events, Overview

#: Kind of event -> number of the latest events that are kept.
KEPT = {"decisions": 500, "failures": 500, "samples": 1_200}


class Watched:
    """Overview of a cluster and its latest events, put together from many answers.

    Attributes
    ----------
    overview
        The last overview; None before the first.
    seq
        Number of the last event, to ask for those after it.
    """

    def __init__(self) -> None:
        self.overview: Overview | None = None
        self.seq = 0
        self._events: dict[str, list[Mapping[str, Any]]] = {kind: [] for kind in KEPT}

    def take(self, overview: Overview, events: Events) -> None:
        """Add an answer. The events of an earlier scheduler are dropped."""
        before = self.overview
        started = None if before is None else before.cluster.get("started_at")
        another = before is not None and started != overview.cluster.get("started_at")
        for kind, most in KEPT.items():
            # What another scheduler numbered is asked for anew.
            kept = [] if another else [*self._events[kind], *getattr(events, kind)]
            self._events[kind] = kept[-most:]
        self.seq = 0 if another else events.seq
        self.overview = overview

    @property
    def decisions(self) -> list[Mapping[str, Any]]:
        """Changes of wanted worker counts, the oldest first."""
        return self._events["decisions"]

    @property
    def failures(self) -> list[Mapping[str, Any]]:
        """Rows about failed calls, the oldest first."""
        return self._events["failures"]

    @property
    def samples(self) -> list[Mapping[str, Any]]:
        """The state of the pools over time."""
        return self._events["samples"]
