"""The policy of adaptive pools: as many workers as pay, in time to be of use, and no longer.

Asks for workers while the time that they save is worth what they cost, counting how long they take
to start; lets idle ones go once keeping them costs more than starting others would.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Literal

from scalable.scaling.capacity import Capacity, finish_s
from scalable.scaling.pool_load import Load, delays_s, load_of
from scalable.scaling.pool_policy import PoolDecision, PoolView
from scalable.scaling.staffing import KEPT_GAPS, ArrivalRate, hold_s, served_s, standing_workers
from scalable.scaling.task_model import TaskModel

PoolObjective = Literal["cost", "balance", "time"]
#: What time is worth beside cost, 0 to 1.
TIME_WEIGHTS: dict[PoolObjective, float] = {"cost": 0.15, "balance": 0.5, "time": 0.9}
#: Counts of workers that are compared are this far from each other, relative to what is added.
STEP_RATIO = 1.25
#: Idle workers of a stream are kept for so many seconds at least: the next calls may be on the way.
SHORT_HOLD_S = 3.0
#: Workers that start within so many seconds ...
QUICK_START_S = 15.0
#: ... are not kept idle for longer than this.
QUICK_HOLD_S = 45.0
_INF = float("inf")


def look_every_s(startup_s: float) -> float:
    """How often to ask the policy, in seconds: more rarely where workers take long to start."""
    return min(5.0, max(1.0, startup_s / 10))


class PoolScaler:
    """Decides how many workers one pool has; one object for each pool.

    Parameters
    ----------
    objective
        What is to be small: "cost", "time", or with "balance" their product.
    hysteresis
        A change has to be better by this share.
    deadline_s
        The known calls should have ended by then, whatever it costs; in seconds of ``view.now``.
    longest_idle_s
        No worker above the minimum idles for longer, in seconds. By default workers that start
        within seconds do not idle for more than 45 s, and others for as long as it pays.

    Raises
    ------
    ValueError
        When the objective is unknown or a number is out of range.
    """

    def __init__(
        self,
        objective: PoolObjective = "balance",
        *,
        hysteresis: float = 0.005,
        deadline_s: float | None = None,
        longest_idle_s: float | None = None,
    ) -> None:
        if objective not in TIME_WEIGHTS:
            raise ValueError(f"no objective {objective!r}; there are {', '.join(TIME_WEIGHTS)}")
        if not 0 <= hysteresis < 1:
            raise ValueError(f"hysteresis cannot be {hysteresis}")
        if longest_idle_s is not None and not longest_idle_s >= 0:
            raise ValueError(f"longest_idle_s cannot be {longest_idle_s}")
        self.objective = objective
        self.hysteresis = hysteresis
        self.deadline_s = deadline_s
        self.longest_idle_s = longest_idle_s
        self._weight = TIME_WEIGHTS[objective]
        self._rate = ArrivalRate()
        #: Since when each idle worker idles, the longest first.
        self._idle_since: list[float] = []
        self._quiet_since: float | None = None
        self._gaps: deque[float] = deque(maxlen=KEPT_GAPS)
        self._periods = 0
        #: Mean seconds of a call, while any was known.
        self._call_s = 1.0
        #: Seconds that calls were there and that workers were paid for, until the last look.
        self._sojourn_s = self._paid_s = 0.0
        self._last: tuple[float, int] | None = None
        #: When the first call was seen.
        self._began: float | None = None
        #: When it was first seen that fewer of the workers on their way are needed.
        self._surplus_since: float | None = None

    def decide(self, view: PoolView, model: TaskModel) -> PoolDecision:
        """Return the wanted count; see :class:`scalable.scaling.pool_policy.PoolPolicy`."""
        load = load_of(view, model)
        self._remember(view, load)
        on_way = delays_s(view)
        connected, total = view.busy + view.idle, view.busy + view.idle + len(on_way)
        standing = self._standing(view, view.startup_s)
        lasting = self._standing(view, 0.0)
        kept = max(view.busy, min(connected, max(standing, lasting)), self._kept(view, load))
        sized, reason = self._sized(view, load, connected, on_way)
        count = max(sized, standing)
        if count > total:
            if standing > sized:
                reason = f"{standing} workers for the rate at which calls come"
        else:
            if view.graph:
                count = self._left_of_graph(view, load, kept, count, on_way)
            else:
                count = min(total, max(kept, standing, sized if sized > connected else 0))
                if connected <= count < total and _free(view, on_way[count - connected :]):
                    count = total
            count, reason = self._fewer(view, count, total, reason)
        count, reason = _bounded(view, count, reason)
        return PoolDecision(count, reason, self._predicted_s(view, load, count, on_way))

    def _left_of_graph(
        self, view: PoolView, load: Load, kept: int, count: int, on_way: Sequence[float]
    ) -> int:
        """How many of a graph's workers stay, given those to keep and those that are of use."""
        connected = view.busy + view.idle
        # Where those that are there idle, nobody waits for those on their way.
        if kept >= connected:
            kept += min(len(on_way), max(0, count - kept))
        # Whom the next look would ask for again is not let go.
        left = min(connected, kept)
        again, _ = self._sized(view, load, left, on_way[: kept - left])
        return min(connected + len(on_way), max(kept, again))

    def _fewer(self, view: PoolView, count: int, total: int, reason: str) -> tuple[int, str]:
        """Fewer workers; while some are on their way only once two looks have found them needless.

        Their place in a queue would be lost.
        """
        if count == total or not view.arriving:
            self._surplus_since = None
            idle = "idle workers are let go: others can be started for less than keeping them"
            return count, reason if count == total else idle
        if self._surplus_since is None:
            self._surplus_since = view.now
        within = view.maximum is None or total <= view.maximum
        if within and view.now <= self._surplus_since:
            return total, "workers on their way may be too many"
        return count, "workers on their way would come too late to be of use"

    def _remember(self, view: PoolView, load: Load) -> None:
        connected = view.busy + view.idle
        since, before = self._last or (view.now, 0)
        del self._idle_since[: max(0, before - connected)]  # who idled longest has left
        self._sojourn_s += (view.now - since) * load.ready
        self._paid_s += (view.now - since) * connected
        self._paid_s += view.billed_startup_s * max(0, connected - before)
        self._last = (view.now, connected)
        self._rate.see(view.now, view.submitted)
        if load.portions:
            self._call_s = max(load.call_s, 1e-3)
        del self._idle_since[view.idle :]
        self._idle_since += [view.now] * (view.idle - len(self._idle_since))
        if load.ready and self._began is None:
            self._began = view.now
        if load.ready:
            if self._quiet_since is not None:
                self._gaps.append(view.now - self._quiet_since)
                self._quiet_since = None
            self._periods = max(self._periods, 1 + len(self._gaps))
        elif self._quiet_since is None and view.submitted:
            self._quiet_since = view.now

    def _kept(self, view: PoolView, load: Load) -> int:
        """Connected workers to keep for the next calls."""
        taken = min(view.idle, -(-load.queued // view.slots))
        if view.graph:
            return view.busy + self._awaited(view, load, taken)
        hold, last_hold = self._holds(view)
        waits = [view.now - since for since in self._idle_since[: view.idle - taken]]
        keep = taken + sum(idle < hold for idle in waits)
        if waits and view.busy + taken == 0 and keep <= 1:
            keep = int(waits[-1] < last_hold)
        return view.busy + keep

    def _odds(self) -> float:
        return self._weight / max(1e-9, 1 - self._weight)

    def _awaited(self, view: PoolView, load: Load, taken: int) -> int:
        """Idle workers of a graph to keep for calls that are about to be ready.

        Keeping ``n`` for so many seconds costs ``n`` times that; letting them go costs their starts
        later, and the graph what is left of the start when its calls are ready.
        """
        elapsed = view.now - (self._began if self._began is not None else view.now)
        parallel = (self._paid_s + load.work_s) / max(elapsed + load.end_s, 1e-3)
        lost = self._odds() * parallel
        keep, soon = taken, 0
        for ready_s, _, count in view.coming:
            soon += count
            spare = min(view.idle, taken + -(-soon // view.slots))
            most = spare * view.billed_startup_s + lost * view.startup_s
            if ready_s * (spare + lost) <= most:
                keep = max(keep, spare)
        return keep

    def _exchange(self) -> float:
        """Seconds of a worker that are worth as much as a second that a call waits.

        As far as either changes what is made small, given what was spent of both so far.
        """
        spent = self._paid_s / self._sojourn_s if self._sojourn_s else 1.0
        return self._odds() * spent

    def _holds(self, view: PoolView) -> tuple[float, float]:
        """How long idle workers of a stream are kept in seconds: any of them, and the last one."""
        calls = view.submitted / max(1, self._periods) / view.slots
        saved = served_s(self._call_s, calls, view.startup_s)
        last = hold_s(self._gaps, view.billed_startup_s + self._exchange() * saved)
        hold = min(SHORT_HOLD_S, view.billed_startup_s + self._odds() * view.startup_s)
        limit = self.longest_idle_s
        if limit is None:
            limit = QUICK_HOLD_S if view.startup_s <= QUICK_START_S else _INF
        return min(hold, limit), min(last, limit)

    def _standing(self, view: PoolView, ahead_s: float) -> int:
        """Workers for the rate at which calls of a stream come, in so many seconds."""
        rate = 0.0 if view.graph else self._rate.at(ahead_s)
        if rate <= 0:
            return 0
        return standing_workers(
            rate * self._call_s / view.slots,
            1.0,
            view.startup_s / self._call_s,
            view.billed_startup_s / self._call_s,
            self._weight,
        )

    def _sized(
        self, view: PoolView, load: Load, connected: int, on_way: Sequence[float]
    ) -> tuple[int, str]:
        """The best count of workers for the known calls, and why."""
        now = connected + len(on_way)
        if not load.useful:
            return 0, "nothing to do"
        most = max(connected, -(-load.useful // view.slots))
        if not view.graph:
            most = max(most, connected + self._queue_then(view, load, connected))
        if view.maximum is not None:
            most = max(connected, min(most, view.maximum))
        if not most:
            return 0, "no workers are allowed"
        # The counts that are compared do not depend on what was asked for before: asking twice
        # gives the same.
        counts = {*_steps(connected, max(most, now)), most, now} - ({0} if not now else set())
        values = {c: self._value(view, load, connected, on_way, c) for c in counts}
        current = values.get(now, _INF)
        best = min(values, key=lambda count: (values[count], count))
        if values[best] == _INF:  # not even the most suffice for what comes
            return most, f"{most} workers, the most of use, for more calls than they can run"
        if self.deadline_s is not None:
            best = max(best, self._in_time(view, load, connected, on_way, most))
        # What was spent before makes every change look small.
        known = load.work_s / max(1e-9, load.work_s + (0.0 if view.graph else self._paid_s))
        if self.deadline_s is None and current - values[best] <= self.hysteresis * known:
            return now, "no other count is better by enough"
        return best, f"{best} workers for {load.work_s:.0f} worker-seconds of known work"

    def _in_time(
        self,
        view: PoolView,
        load: Load,
        connected: int,
        on_way: Sequence[float],
        most: int,
    ) -> int:
        """The fewest workers that end the known work by the deadline, or the most."""
        assert self.deadline_s is not None
        left = self.deadline_s - view.now
        low, high = 0, most
        while low < high:
            middle = (low + high) // 2
            if self._time_s(view, load, connected, on_way, middle) <= left:
                high = middle
            else:
                low = middle + 1
        return low

    @staticmethod
    def _capacity(view: PoolView, connected: int, on_way: Sequence[float], count: int) -> Capacity:
        coming = on_way[: max(0, count - connected)]
        more = max(0, count - connected - len(on_way))
        return Capacity.of(min(count, connected), coming, more, view.startup_s)

    def _inflow(self, view: PoolView, ahead_s: float) -> float:
        return 0.0 if view.graph else self._rate.at(ahead_s) / view.slots

    def _queue_then(self, view: PoolView, load: Load, connected: int) -> int:
        """Workers that queued calls could fill once a worker that is asked for now is there."""
        queue = load.queued / view.slots
        middle = self._inflow(view, view.startup_s / 2)
        queue += (middle - connected / load.call_s) * view.startup_s
        return max(-(-load.queued // view.slots), math.ceil(queue))

    def _queue_s(self, view: PoolView, load: Load, capacity: Capacity) -> tuple[float, float]:
        """How long calls of a stream wait, all together, and when none waits any more."""
        return capacity.queue_s(
            load.queued / view.slots,
            load.queued_s,
            view.busy,
            lambda ahead_s: self._inflow(view, ahead_s),
        )

    def _time_s(
        self, view: PoolView, load: Load, connected: int, on_way: Sequence[float], count: int
    ) -> float:
        """When the known calls have ended, in seconds from now."""
        capacity = self._capacity(view, connected, on_way, count)
        _, last = self._queue_s(view, load, capacity)
        whole = last + load.queued_s if load.queued else 0.0
        return max(finish_s(capacity, load.portions), whole) + load.rest_s

    def _value(
        self, view: PoolView, load: Load, connected: int, on_way: Sequence[float], count: int
    ) -> float:
        """What is made small: the logarithms of time and cost, weighed.

        Of a stream that of all calls so far, of those that are there, and of those that come until
        a worker asked for now is there.
        """
        new = max(0, count - connected)
        cost = load.work_s + new * view.billed_startup_s
        if view.graph:
            time = self._time_s(view, load, connected, on_way, count)
        else:
            hold, _ = self._holds(view)
            coming = self._inflow(view, view.startup_s / 2) * view.startup_s
            waited, _ = self._queue_s(view, load, self._capacity(view, connected, on_way, count))
            time = self._sojourn_s / view.slots + load.work_s + waited + coming * load.call_s
            cost += self._paid_s + count * hold + coming * load.call_s
        if time == _INF:
            return _INF
        return self._weight * math.log(max(time, 1e-3)) + (1 - self._weight) * math.log(
            max(cost, 1e-3)
        )

    def _predicted_s(
        self, view: PoolView, load: Load, count: int, on_way: Sequence[float]
    ) -> float | None:
        if not load.work_s:
            return 0.0
        connected = min(view.busy + view.idle, count)
        time = self._time_s(view, load, connected, on_way, count)
        return None if time == _INF else time


def _free(view: PoolView, expected_s: Sequence[float]) -> bool:
    """Whether workers that are expected in so many seconds cost nothing for a while yet.

    Starts take now longer, now less long: in the later half of one, what is paid for may begin.
    """
    return min(expected_s) > view.startup_s / 2 + view.billed_startup_s


def _steps(low: int, high: int) -> list[int]:
    """Counts between two, both included: each at first, sparser farther up."""
    counts, count, step = [low], low, 1.0
    while (count := low + round(step)) < high:
        counts.append(count)
        step = max(step + 1, STEP_RATIO * step)
    return [*counts, high]


def _bounded(view: PoolView, count: int, reason: str) -> tuple[int, str]:
    high = view.maximum if view.maximum is not None else max(count, view.busy, view.minimum)
    low = max(view.minimum, view.busy)
    bounded = min(max(count, low), high)
    if bounded != count:
        reason = f"{reason}; {count} is beyond {low} .. {high}"
    return bounded, reason
