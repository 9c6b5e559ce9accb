"""Reasons of misses: what changed beside the nearest earlier result of the function."""

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

#: Number of misses of each function that are compared with earlier results in any case.
ALWAYS: Final = 100
#: Largest share of the time that a function's calls run that is spent on comparing further ones.
SHARE: Final = 0.01
#: Reason of the misses that were not compared.
NOT_COMPARED: Final = "not compared with earlier results: the calls are too short for that"
#: Reason of a call whose key cannot be made.
NO_KEY: Final = "the code refers to something that cannot be followed, so the call has no key"
#: Largest number of parts that an outcome names.
NAMED: Final = 16


@dataclass
class _Spent:
    """Misses of a function in this process: their number, and seconds of comparing and running."""

    misses: int = 0
    comparing_s: float = 0.0
    running_s: float = 0.0

    def may_compare(self) -> bool:
        return self.misses <= ALWAYS or self.comparing_s <= SHARE * self.running_s


class Misses:
    """Finds the reasons of misses. The time that this takes is bounded for each function.

    Parameters
    ----------
    store
        The store in which no result was found.
    """

    def __init__(self, store: ResultStore) -> None:
        self._store = store
        self._spent: dict[str, _Spent] = {}
        self._lock = threading.Lock()

    def outcome(self, key: CallKey, asked_at: float, running_s: float) -> RememberedOutcome:
        """Return the outcome of a call that ran; to be called before its result is stored.

        Parameters
        ----------
        key
            Key of the call.
        asked_at
            Time of the call in seconds since 1970. Results that were stored later are no earlier
            ones: they are those of the calls beside it.
        running_s
            Seconds that the call ran.
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
    """Return what finds the reasons of misses in a store, for this process."""
    return Misses(store)
