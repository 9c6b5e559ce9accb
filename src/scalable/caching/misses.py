"""Reasons of cache misses: differences from the nearest earlier result of the function."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from scalable.caching.differences import differences, why_missed
from scalable.caching.key import CallKey
from scalable.caching.store import ResultStore
from scalable.spec.remembered import Kind, RememberedOutcome

#: Number of misses of each function that are always compared with earlier results.
ALWAYS: Final = 100
#: Largest share of a function's running time that is spent on comparing more of them.
SHARE: Final = 0.01
#: Reason of a miss that was not compared.
NOT_COMPARED: Final = "not compared with earlier results: the calls are too short for that"
#: Reason of a task without a cache key.
NO_KEY: Final = "the code refers to something that cannot be followed, so the call has no key"
#: Largest number of parts that an outcome names.
NAMED: Final = 16


@dataclass
class _Spent:
    """Misses of a function in this process, with the seconds of comparing and running."""

    misses: int = 0
    comparing_s: float = 0.0
    running_s: float = 0.0

    def may_compare(self) -> bool:
        return self.misses <= ALWAYS or self.comparing_s <= SHARE * self.running_s


class Misses:
    """Finder of reasons of misses. Its time is bounded for each function."""

    def __init__(self, store: ResultStore) -> None:
        self._store = store
        self._spent: dict[str, _Spent] = {}
        self._lock = threading.Lock()

    def outcome(self, key: CallKey, asked_at: float, running_s: float) -> RememberedOutcome:
        """Return the outcome of a task that ran. Must be called before its result is stored.

        Results that were stored after ``asked_at`` (seconds since 1970) belong to concurrent tasks
        and are not compared.
        """
        with self._lock:
            spent = self._spent.setdefault(key.function, _Spent())
            spent.misses += 1
            spent.running_s += running_s
            if not spent.may_compare():
                return RememberedOutcome(Kind.MISSED, reason=NOT_COMPARED, key=key.digest)
        began = time.perf_counter()
        found = self._compared(key, asked_at)
        with self._lock:
            spent.comparing_s += time.perf_counter() - began
        return found

    def _compared(self, key: CallKey, asked_at: float) -> RememberedOutcome:
        fault = self._store.reports.latest_about(key.digest)
        if fault is not None:
            reason = f"the stored result {fault.reason}"
            return RememberedOutcome(Kind.MISSED, reason=reason, key=key.digest)
        nearest = self._store.nearest(key.function, key.parts, before=asked_at)
        parts = None if nearest is None else nearest.parts
        changed = () if parts is None else differences(key.function, key.parts, parts)
        return RememberedOutcome(
            Kind.MISSED,
            reason=why_missed(key.function, key.parts, parts),
            changed=tuple(each.part for each in changed[:NAMED]),
            key=key.digest,
            nearest="" if nearest is None else nearest.key,
        )


@lru_cache(maxsize=8)
def misses_of(store: ResultStore) -> Misses:
    """Return this process's finder of reasons of misses for a store."""
    return Misses(store)
