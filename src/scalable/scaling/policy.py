"""The policy of adaptive pools: as many workers as pay, in time to be of use, and no longer.

Asks for workers while the time that they save is worth what they cost, counting how long they take
to start; lets idle ones go once keeping them costs more than starting others would.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from scalable.scaling.capacity import Capacity, Portion, finish_s, merged
from scalable.scaling.pools import PoolDecision, PoolView
from scalable.scaling.staffing import KEPT_GAPS, ArrivalRate, hold_s, standing_workers
from scalable.scaling.task_model import Kind, TaskModel

Aim = Literal["cost", "balance", "time"]
#: What time is worth beside cost, 0 to 1.
TIME_WEIGHTS: dict[Aim, float] = {"cost": 0.15, "balance": 0.5, "time": 0.9}
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


@dataclass(frozen=True)
class _Load:
    """What a look at a pool tells. Work in worker-seconds."""

    #: That is ready or will be before a worker that is asked for now, and seconds of what follows.
    portions: tuple[Portion, ...]
    rest_s: float
    #: Calls that run or could run, and those that wait for a worker.
    ready: int
    queued: int
    #: Of these calls and those that become ready before a worker could be there.
    useful: int
    work_s: float
    #: Mean seconds of a call, and of one that is queued.
    call_s: float
    queued_s: float


class PoolScaler:
    """Decides how many workers one pool has; one object for each pool.

    Parameters
    ----------
    aim
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
        When the aim is unknown or a number is out of range.
    """

    def __init__(
        self,
        aim: Aim = "balance",
        *,
        hysteresis: float = 0.005,
        deadline_s: float | None = None,
        longest_idle_s: float | None = None,
    ) -> None:
        if aim not in TIME_WEIGHTS:
            raise ValueError(f"no aim {aim!r}; there are {', '.join(TIME_WEIGHTS)}")
        if not 0 <= hysteresis < 1:
            raise ValueError(f"hysteresis cannot be {hysteresis}")
        if longest_idle_s is not None and not longest_idle_s >= 0:
            raise ValueError(f"longest_idle_s cannot be {longest_idle_s}")
        self.aim = aim
        self.hysteresis = hysteresis
        self.deadline_s = deadline_s
        self.longest_idle_s = longest_idle_s
        self._weight = TIME_WEIGHTS[aim]
        self._rate = ArrivalRate()
        #: Since when there are at least so many idle workers.
        self._idle_since: list[float] = []
        self._quiet_since: float | None = None
        self._gaps: deque[float] = deque(maxlen=KEPT_GAPS)
        self._periods = 0
        #: Mean seconds of a call, while any was known.
        self._call_s = 1.0
        #: When it was first seen that fewer of the workers on their way are needed.
        self._surplus_since: float | None = None

    def decide(self, view: PoolView, model: TaskModel) -> PoolDecision:
        """How many workers the pool is to have; see :class:`scalable.scaling.pools.PoolPolicy`."""
        load = _load(view, model)
        self._remember(view, load)
        on_way = _delays(view)
        connected, total = view.busy + view.idle, view.busy + view.idle + len(on_way)
        standing = self._standing(view)
        kept = max(view.busy, min(connected, standing), self._kept(view, load))
        sized, reason = self._sized(view, load, connected, on_way)
        count = max(sized, standing)
        if count > total:
            if standing > sized:
                reason = f"{standing} workers for the rate at which calls come"
        else:
            # Where those that are there idle, nobody waits for those on their way.
            count = kept if kept < connected else kept + min(len(on_way), max(0, count - kept))
            if count < total:  # whom the next look would ask for again is not let go
                left = min(connected, count)
                again, _ = self._sized(view, load, left, on_way[: count - left])
                count = min(total, max(count, again))
            count, reason = self._fewer(view, count, total, reason)
        count, reason = _bounded(view, count, reason)
        return PoolDecision(count, reason, self._predicted_s(view, load, count, on_way))

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

    def _remember(self, view: PoolView, load: _Load) -> None:
        self._rate.see(view.now, view.submitted)
        if load.portions:
            self._call_s = max(load.call_s, 1e-3)
        del self._idle_since[view.idle :]
        self._idle_since += [view.now] * (view.idle - len(self._idle_since))
        if load.ready:
            if self._quiet_since is not None:
                self._gaps.append(view.now - self._quiet_since)
                self._quiet_since = None
            self._periods = max(self._periods, 1 + len(self._gaps))
        elif self._quiet_since is None and view.submitted:
            self._quiet_since = view.now

    def _kept(self, view: PoolView, load: _Load) -> int:
        """Connected workers to keep for the next calls."""
        taken = min(view.idle, -(-load.queued // view.slots))
        if view.graph:
            hold = view.billed_startup_s + self._odds() * view.startup_s
            soon = sum(count for ready_s, _, count in view.coming if ready_s <= hold)
            spare = -(-soon // view.slots)
            return view.busy + min(view.idle, taken + spare)
        hold, last_hold = self._holds(view)
        keep = taken
        for place in range(taken, view.idle):
            since = view.now - self._idle_since[place]
            last = view.busy == 0 and place == 0
            if since < (last_hold if last else hold):
                keep = place + 1
        return view.busy + keep

    def _odds(self) -> float:
        return self._weight / max(1e-9, 1 - self._weight)

    def _holds(self, view: PoolView) -> tuple[float, float]:
        """How long idle workers of a stream are kept in seconds: any of them, and the last one."""
        even = view.billed_startup_s + self._odds() * view.startup_s
        call = self._call_s
        calls = view.submitted / max(1, self._periods)
        last = hold_s(
            self._gaps,
            call,
            calls / view.slots,
            view.startup_s,
            view.billed_startup_s,
            self._weight,
        )
        hold = min(SHORT_HOLD_S, even)
        limit = self.longest_idle_s
        if limit is None:
            limit = QUICK_HOLD_S if view.startup_s <= QUICK_START_S else _INF
        return min(hold, limit), min(max(hold, 1.1 * last), limit)

    def _standing(self, view: PoolView) -> int:
        """Workers for the rate at which calls of a stream come once a new worker could be there."""
        if view.graph:
            return 0
        rate = self._rate.at(view.startup_s)
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
        self, view: PoolView, load: _Load, connected: int, on_way: Sequence[float]
    ) -> tuple[int, str]:
        """The best count of workers for the known calls, and why."""
        now = connected + len(on_way)
        if not load.useful:
            return 0, "nothing to do"
        most = max(connected, -(-load.useful // view.slots))
        if view.maximum is not None:
            most = max(connected, min(most, view.maximum))
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
        elif current - values[best] <= self.hysteresis:
            return now, "no other count is better by enough"
        return best, f"{best} workers for {load.work_s:.0f} worker-seconds of known work"

    def _in_time(
        self,
        view: PoolView,
        load: _Load,
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

    def _wait_s(self, view: PoolView, load: _Load, capacity: Capacity) -> tuple[float, float]:
        """How long queued calls wait in seconds: the mean of them, and the last one."""
        if not load.queued:
            return 0.0, 0.0
        taken = 0.0
        if not view.graph:
            taken = self._rate.at(view.startup_s) * self._call_s / view.slots
        return capacity.starts_s(load.queued / view.slots, load.queued_s, view.busy, taken)

    def _time_s(
        self, view: PoolView, load: _Load, connected: int, on_way: Sequence[float], count: int
    ) -> float:
        """When the known calls have ended, in seconds from now."""
        capacity = self._capacity(view, connected, on_way, count)
        _, last = self._wait_s(view, load, capacity)
        return max(finish_s(capacity, load.portions), last + load.queued_s) + load.rest_s

    def _value(
        self, view: PoolView, load: _Load, connected: int, on_way: Sequence[float], count: int
    ) -> float:
        """What is made small: the logarithms of time and cost, weighed."""
        new = max(0, count - connected)
        cost = load.work_s + new * view.billed_startup_s
        if view.graph:
            time = self._time_s(view, load, connected, on_way, count)
        else:
            hold, _ = self._holds(view)
            wait, _ = self._wait_s(view, load, self._capacity(view, connected, on_way, count))
            time = load.call_s + wait * load.queued / max(1, load.ready)
            cost += count * hold
        if time == _INF:
            return _INF
        return self._weight * math.log(max(time, 1e-3)) + (1 - self._weight) * math.log(
            max(cost, 1e-3)
        )

    def _predicted_s(
        self, view: PoolView, load: _Load, count: int, on_way: Sequence[float]
    ) -> float | None:
        if not load.work_s:
            return 0.0
        connected = min(view.busy + view.idle, count)
        time = self._time_s(view, load, connected, on_way, count)
        return None if time == _INF else time


def _load(view: PoolView, model: TaskModel) -> _Load:
    """The known work of a pool."""
    portions: list[Portion] = []
    kinds = {*view.running, *view.queued}
    means = {kind: _mean_s(model, kind, view.running.get(kind, ())) for kind in kinds}
    left = [model.residual_s(kind, e) for kind, all_e in view.running.items() for e in all_e]
    queued = sum(view.queued.values())
    if left or queued:
        work = sum(left) + sum(count * means[kind] for kind, count in view.queued.items())
        longest = max(left + [means[kind] for kind, count in view.queued.items() if count])
        portions.append(Portion(0.0, work / view.slots, longest))
    ready = len(left) + queued
    useful = ready
    soon: list[Portion] = []
    later: list[Portion] = []
    for ready_s, kind, count in view.coming:
        if kind not in means:
            means[kind] = model.mean_s(kind)
        mean = means[kind]
        portion = Portion(ready_s, count * mean / view.slots, mean)
        (soon if ready_s <= view.startup_s else later).append(portion)
        useful += count if ready_s <= view.startup_s else 0
    portions += merged(soon)
    rest_s = 0.0
    if later:
        end = max(p.ready_s + p.longest_s for p in later)
        rest_s = end - min(p.ready_s for p in later)
    counts = [(kind, len(elapsed)) for kind, elapsed in view.running.items()]
    counts += [*view.queued.items(), *((kind, count) for _, kind, count in view.coming)]
    calls = sum(count for _, count in counts)
    call_s = sum(means[kind] * count for kind, count in counts) / calls if calls else 1.0
    work_s = sum(p.work_s for p in (*portions, *later))
    queued_s = sum(means[kind] * count for kind, count in view.queued.items()) / max(1, queued)
    return _Load(
        tuple(portions), rest_s, ready, queued, useful, work_s, call_s, max(queued_s, 1e-3)
    )


def _mean_s(model: TaskModel, kind: Kind, running: Sequence[float]) -> float:
    """Mean seconds of a kind's calls; those that run count, but are no proof of far longer ones.

    Time on test assumes that calls end at random moments. Where all take alike, and many started
    together, it says far too much until the first ends: nothing shows that they take longer than
    twice what they have run for.
    """
    plain = model.mean_s(kind)
    if not running:
        return plain
    return min(model.mean_s(kind, running), max(plain, 2 * max(running)))


def _delays(view: PoolView) -> list[float]:
    """In how many seconds each worker on its way is expected, the soonest first."""
    late = 0.1 * view.startup_s
    return sorted(max(view.startup_s - since, late) for since in view.arriving)


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
