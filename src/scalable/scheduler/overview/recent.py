"""Latest events of a cluster, numbered and in bounded memory."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from itertools import takewhile
from typing import Any

from scalable.model.overview import Events

#: Number of the latest events that are kept of each kind.
KEPT = {"decisions": 500, "failures": 500, "spans": 20_000}
#: Number of samples that are kept. If there are more, every second one is dropped.
KEPT_SAMPLES = 1_000
#: Seconds between two samples, as long as none was dropped.
SAMPLES_INTERVAL_S = 1.0
#: Largest numbers of spans and failures in one answer, the newest ones. A reader that polls each
#: second misses none unless there are more in a second.
SPANS_AT_ONCE, FAILURES_AT_ONCE = 1_000, 100
#: Largest number of samples in one answer, times the number of pools. If there are more, samples at
#: even distances are returned.
SAMPLED_POOLS_AT_ONCE = 4_000

KINDS = frozenset([*KEPT, "samples"])


class RecentEvents:
    """Keeps the latest events of each kind, numbered in order (``seq`` is the last number)."""

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
        """Add a sample of the pools with its time ``at``, unless the last one is too recent."""
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
        A number that was never given, such as an earlier scheduler's, counts as 0: all kept events.
        """
        seq = seq if seq <= self.seq else 0
        found: dict[str, list[Any]] = {}
        for kind in kinds & KEPT.keys():
            newest_first = takewhile(lambda numbered: numbered[0] > seq, reversed(self._kept[kind]))
            found[kind] = [event for _, event in newest_first][::-1]
        if "samples" in kinds:
            samples = [sample for number, sample in self._samples if number > seq]
            found["samples"] = _thinned(samples)
        missed = any(self._dropped[kind] > seq for kind in kinds & KEPT.keys())
        for kind, most in (("spans", SPANS_AT_ONCE), ("failures", FAILURES_AT_ONCE)):
            if len(found.get(kind, ())) > most:
                found[kind] = found[kind][-most:]
                missed = True
        return Events(self.seq, missed, **found)


def _thinned(samples: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return samples at even distances up to the last, as many as fit in one answer."""
    values = sum(len(sample.get("pools", ())) for sample in samples)
    apart = max(1, math.ceil(values / SAMPLED_POOLS_AT_ONCE))
    return samples[::-apart][::-1]
