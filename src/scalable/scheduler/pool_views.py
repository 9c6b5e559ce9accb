"""Input of scaling policies: workers, tasks and start times of each pool."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Mapping
from statistics import median
from typing import Any

from distributed.scheduler import WorkerState

from scalable.model import PoolStatus, Starting
from scalable.protocol.pools import UNTAGGED, Attachment
from scalable.scaling.outlook import likeliest
from scalable.scaling.pool_policy import PoolView
from scalable.scaling.readiness import Slots
from scalable.scaling.task_model import Kind
from scalable.scheduler.following import FollowedPools
from scalable.scheduler.workload import Workload

#: Number of latest start durations kept for each pool. Their median predicts the next one.
KEPT_STARTS = 20


class Starts:
    """Request times of a pool's starting workers, and how long earlier starts took."""

    def __init__(self) -> None:
        self._asked_at: list[float] = []
        self._took_s: deque[float] = deque(maxlen=KEPT_STARTS)

    def expect(self, count: int, now: float) -> list[float]:
        """Set how many workers are starting, and return for how many seconds each has been.
        A higher number than before adds requests made now, a lower number drops the latest ones.
        """
        del self._asked_at[max(0, count) :]
        self._asked_at += [now] * (count - len(self._asked_at))
        return [now - at for at in self._asked_at]

    def connected(self, now: float) -> None:
        """Record a connected worker, assumed to be the one requested earliest."""
        if self._asked_at:
            self._took_s.append(now - self._asked_at.pop(0))

    def typical_s(self, default: float) -> float:
        return median(self._took_s) if self._took_s else default


class PoolViews:
    """Builds the input of scaling policies for the pools of one cluster."""

    def __init__(self, cluster: FollowedPools, workload: Workload) -> None:
        self._cluster = cluster
        self._workload = workload
        self._starts: dict[str, Starts] = {}

    def connected(self, worker: WorkerState) -> None:
        """Record a connected worker, to measure how long workers take to start."""
        pools = self._cluster.pools()
        for tag in [tag for tag in worker.resources if tag in pools] or [UNTAGGED]:
            if tag in self._starts:
                self._starts[tag].connected(time.monotonic())

    def view(self, tag: str, minimum: int, maximum: int | None) -> PoolView:
        now = time.monotonic()
        pools = self._cluster.pools()
        wanted = pools[tag].wanted
        running: dict[Kind, list[float]] = {}
        queued = Counter(self._workload.ready_calls.get(tag, {})) + self._workload.in_clients(tag)
        busy = idle = 0
        for worker in self._workers(tag, pools):
            leaving = self._cluster.leaves(worker)
            for call, elapsed in self._workload.running_on(worker):
                slots = dict(call.slots).get(tag, 0)
                queued[call.kind] -= slots
                if not leaving:  # tasks of a leaving worker are not load for the others
                    running.setdefault(call.kind, []).extend([elapsed] * slots)
            busy += bool(worker.processing) and not leaving
            idle += not worker.processing and not leaving
        starts = self._starts.setdefault(tag, Starts())
        place = self._place(tag)
        arriving = starts.expect(wanted - busy - idle, now)
        startup_s = max(starts.typical_s(place.startup_s), *arriving[:1], 0.0)
        ahead = self._workload.outlooks(tag, self._slots(pools), startup_s)
        return PoolView(
            now=now,
            minimum=minimum,
            maximum=maximum,
            slots=pools[tag].slots,
            wanted=wanted,
            busy=busy,
            idle=idle,
            arriving=arriving,
            queued={kind: count for kind, count in queued.items() if count > 0},
            running={kind: elapsed for kind, elapsed in running.items() if elapsed},
            coming=likeliest(ahead).coming if ahead else (),
            outlooks=ahead,
            submitted=self._workload.submitted_calls[tag],
            graph=self._workload.graph,
            startup_s=startup_s,
            billed_startup_s=min(startup_s, place.billed_s),
            billed_least_s=place.billed_least_s,
        )

    def _workers(self, tag: str, pools: Mapping[str, Any]) -> list[WorkerState]:
        workers = self._cluster.scheduler.workers.values()
        if tag != UNTAGGED:
            return [ws for ws in workers if tag in ws.resources]
        return [ws for ws in workers if not any(name in pools for name in ws.resources)]

    @staticmethod
    def _slots(pools: Mapping[str, PoolStatus]) -> dict[str, Slots]:
        return {t: Slots(max(1, p.running) * p.slots) for t, p in pools.items()}

    def _place(self, tag: str) -> Starting:
        """Return the expected start durations of the manager that is filled first for a tag."""
        offering = [known for known in self._cluster.attachments() if tag in known.pools]
        first = min(offering, key=lambda a: (a.priority, _price(a, tag)), default=None)
        return Starting() if first is None else Starting(**first.starting)


def _price(attachment: Attachment, tag: str) -> float:
    return attachment.prices.get(tag, {}).get("per_hour", 0.0)
