"""Bundles (batches of calls of an executor) on simulated workers: made-up times and results."""

from __future__ import annotations

import math
import time
from array import array
from collections.abc import Iterator, Mapping
from typing import Any

from scalable.protocol.bundles import EVERY, PLAIN
from scalable.protocol.measured import BUNDLE_ANNOTATION
from scalable.protocol.operations import BEGUN, OUTCOMES, RETURNED
from scalable.worker.bundles import OVERDUE_S
from scalable.worker.outcomes import BundleCounts, EndedCalls

#: Peak memory of each worker in bytes.
MEMORY = 100_000_000


def is_bundle(message: Mapping[str, Any]) -> bool:
    """Return whether the call of a message ``compute-task`` is a bundle."""
    return BUNDLE_ANNOTATION in (message.get("annotations") or {})


def given_back(key: str, client: str) -> dict[str, Any]:
    """Return the message that a bundle was given back before it began."""
    return {"op": RETURNED, "client": client, "key": key, "numbers": EVERY}


class SimulatedBundle:
    """One running bundle, whose calls all take the same time."""

    def __init__(self, message: Mapping[str, Any], worker: str, call_s: float) -> None:
        header = message["run_spec"]._loaded().args[0]
        self._about = {"client": header["client"], "key": header["key"]}
        self._rows = header["profile"] or header["record"]
        self._worker, self._call_s = worker, call_s
        self._calls = int(message["annotations"][BUNDLE_ANNOTATION]["calls"])
        begun = math.ceil(OVERDUE_S / call_s) if call_s > 0 else self._calls
        self._begun = max(1, min(self._calls, begun))
        self._counts = BundleCounts()

    @property
    def seconds(self) -> float:
        """Seconds until all calls that it begins have ended."""
        return self._begun * self._call_s

    def begins(self) -> dict[str, Any]:
        """Return the message that the bundle has begun."""
        return {"op": BEGUN, **self._about}

    def ends(self) -> Iterator[dict[str, Any]]:
        """Return the messages of the end: the calls that did not begin, and the outcomes."""
        if self._begun < self._calls:
            numbers = list(range(self._begun, self._calls))
            yield {"op": RETURNED, **self._about, "numbers": numbers}
        now, call_s = time.time(), self._call_s
        ended = EndedCalls([(n, n, PLAIN, 0.0, call_s, call_s) for n in range(self._begun)])
        self._counts.ran(ended.numbers, ended.durations)
        measured = None
        if self._rows:
            began = now - self.seconds
            columns = (array("d", [each]) * self._begun for each in (began, call_s, call_s))
            measured = (self._worker, 0.0, *columns, MEMORY)
            self._counts.rows = [("succeeded", (began, call_s, call_s, MEMORY))] * self._begun
        told = ended.message(measured)
        busy_s = max(self.seconds, 1e-6 * self._begun)
        yield {"op": OUTCOMES, **self._about, "outcomes": told, "busy_s": busy_s, "over": True}

    def entry(self) -> Any:
        """Return the entry of the bundle's calls in the timings of its Dask task."""
        return self._counts.entry()
