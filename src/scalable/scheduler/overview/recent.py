"""The latest events of a cluster, in bounded memory and with numbers to ask by."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from itertools import takewhile
from typing import Any

from scalable.spec.overview import Events

#: Kind of event -> number of the latest events that are kept.
KEPT = {"decisions": 500, "failures": 500, "spans": 20_000}
#: Number of samples that are kept. If there are more, every second one is dropped.
KEPT_SAMPLES = 1_000
#: Seconds between two samples, as long as none was dropped.
SAMPLES_INTERVAL_S = 1.0
#: Largest number of spans in one answer; a reader that asks again gets the next ones.
SPANS_AT_ONCE = 5_000

KINDS = frozenset([*KEPT, "samples"])


class RecentEvents:
    """Keeps the latest events of each kind, numbered in the order in which they happened.

    Attributes
    ----------
    seq
        Number of the last event; 0 before the first.
    """

    def __init__(self) -> None:
        self.seq = 0
        self._kept: dict[str, deque[tuple[int, Any]]] = {
            kind: deque(maxlen=kept) for kind, kept in KEPT.items()
        }
        self._dropped = dict.fromkeys(KEPT, 0)
        self._samples: list[tuple[int, Mapping[str, Any]]] = []
        self._samples_apart_s = SAMPLES_INTERVAL_S

    def add(self, kind: str, event: Any) -> None:
        """Add an event of one of the kinds in :data:`KEPT`."""
        self.seq += 1
        kept = self._kept[kind]
        if len(kept) == kept.maxlen:
            self._dropped[kind] = kept[0][0]
        kept.append((self.seq, event))

    def sample(self, sample: Mapping[str, Any]) -> None:
        """Add a sample, unless the last one is not old enough.

        Parameters
        ----------
        sample
            The state of the pools, with its time as ``at``, as in :class:`Events`.
        """
        apart_s = self._samples_apart_s
        if self._samples and sample["at"] - self._samples[-1][1]["at"] < 0.9 * apart_s:
            return
        self.seq += 1
        self._samples.append((self.seq, sample))
        if len(self._samples) > KEPT_SAMPLES:
            self._samples = self._samples[::2]
            self._samples_apart_s = 2 * apart_s

    def latest(self, kind: str, count: int) -> list[Any]:
        """Return the last events of one kind, the newest first."""
        events = reversed(self._kept[kind])
        return [event for _, (_, event) in zip(range(count), events, strict=False)]

    def since(self, seq: int, kinds: frozenset[str] = KINDS) -> Events:
        """Return the events of some kinds after a number.

        Parameters
        ----------
        seq
            Number of the last event that the reader has; 0 for all events that are kept. A number
            that was never given, such as that of an earlier scheduler, counts as 0.
        kinds
            Kinds of events to return.
        """
        seq = seq if seq <= self.seq else 0
        found: dict[str, list[Any]] = {}
        for kind in kinds & KEPT.keys():
            newest_first = takewhile(lambda numbered: numbered[0] > seq, reversed(self._kept[kind]))
            found[kind] = [event for _, event in newest_first][::-1]
        if "samples" in kinds:
            found["samples"] = [sample for number, sample in self._samples if number > seq]
        missed = any(self._dropped[kind] > seq for kind in kinds & KEPT.keys())
        if len(found.get("spans", ())) > SPANS_AT_ONCE:
            found["spans"] = found["spans"][-SPANS_AT_ONCE:]
            missed = True
        return Events(self.seq, missed, **found)
