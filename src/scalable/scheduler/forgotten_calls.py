"""Facts about tasks that the scheduler has forgotten, from the failures it keeps."""

from __future__ import annotations

import difflib
import time
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any

from distributed import Scheduler

from scalable.explaining.facts import CallFacts, Failure
from scalable.frames import own_frame_in
from scalable.protocol.pools import UNTAGGED
from scalable.scheduler.overview.recent import KEPT, RecentEvents

#: Maximum number of known names that an unknown name is compared with.
COMPARED_NAMES = 1000


class ForgottenCalls:
    """Reports failed tasks whose futures no client holds any more."""

    def __init__(self, scheduler: Scheduler, recent: RecentEvents) -> None:
        self._scheduler, self._recent = scheduler, recent

    def facts(self, name: str, tags: Iterable[str]) -> CallFacts:
        """Return the facts about the forgotten tasks that a key, key prefix or task name means.
        ``tags`` are the pools that a mistyped name may mean.
        """
        rows = [row for row in self._recent.latest("failures", KEPT["failures"]) if _of_call(row)]
        found = failed_calls_named(name, rows, time.time())
        if found is not None:
            return found
        known = [tag for tag in tags if tag]
        known += islice(map(str, self._scheduler.task_prefixes), COMPARED_NAMES)
        known += getattr(self._scheduler, "tags_of_tasks", None) or ()
        known += [str(row["details"]["task_name"]) for row in rows]
        close = difflib.get_close_matches(name, dict.fromkeys(known), 2)
        return CallFacts(name, name, UNTAGGED, "unknown", close=tuple(close))


def _of_call(row: Mapping[str, Any]) -> bool:
    return bool((row.get("details") or {}).get("task_id"))


def failed_calls_named(
    name: str, rows: Iterable[Mapping[str, Any]], now: float
) -> CallFacts | None:
    """Return the facts about the failed tasks that a name means, or None.
    ``name`` is tried as a key, a task name and a key prefix, in this order. ``rows`` are rows of
    ``failures.jsonl``, the newest first.
    """
    rows = list(rows)
    meanings: tuple[Callable[[Mapping[str, Any]], bool], ...] = (
        lambda details: details["task_id"] == name,
        lambda details: details.get("task_name") == name,
        lambda details: str(details["task_id"]).startswith(name),
    )
    for means in meanings:
        if found := [row for row in rows if means(row["details"])]:
            return _facts(found, now)
    return None


def _facts(rows: list[Mapping[str, Any]], now: float) -> CallFacts:
    last = rows[0]
    details = last["details"]
    worker = str(details.get("worker") or "")
    frame = details.get("frame") or own_frame_in(str(details.get("traceback") or "")) or ""
    failure = Failure(str(last["failure_class"]), str(last["message"]), str(frame), worker)
    return CallFacts(
        key=str(details["task_id"]),
        name=str(details.get("task_name") or details["task_id"]),
        tag=str(details.get("tag") or UNTAGGED),
        state="failed",
        count=sum(int(row.get("count", 1)) for row in rows),
        since_s=max(0.0, now - last["timestamp"]),
        worker=worker,
        failure=failure,
        gone=True,
    )
