"""Policy that decides the worker count of an adaptive pool. This module does no I/O.

The policy requests workers while the saved time is worth their cost and start-up time, and releases
idle workers if keeping them costs more than starting them again.
"""

from __future__ import annotations

import logging
import math
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from scalable.scaling.beliefs import Beliefs
from scalable.scaling.capacity import Capacity, Portion, finish_s, merged
from scalable.scaling.outlook import Outlook, outlooks
from scalable.scaling.pool_policy import PoolDecision, PoolView
from scalable.scaling.staffing import KEPT_GAPS, ArrivalRate, hold_s, served_s, standing_workers
from scalable.scaling.task_model import Kind, TaskModel

logger = logging.getLogger("scalable.scaling")

PoolObjective = Literal["cost", "balance", "time"]
#: Weight of time against cost, from 0 (only cost counts) to 1 (only time counts). "balance"
#: minimizes the product of both.
TIME_WEIGHTS: dict[PoolObjective, float] = {"cost": 0.15, "balance": 0.5, "time": 0.9}
#: Minimum gain for which starting workers of a graph are cancelled while durations are uncertain.
#: Like ``hysteresis``, it is a difference of weighted logarithms of time and cost. The time that
#: the workers have waited is lost, and they may be requested again soon.
CANCELLING_GAIN = 0.1
#: Maximum seconds for which idle workers of a stream, except the last, are kept for next tasks.
SHORT_HOLD_S = 3.0
#: Maximum start-up time in seconds with which workers count as quick to start.
QUICK_START_S = 15.0
#: Maximum idle time in seconds, by default, of workers that are quick to start.
QUICK_HOLD_S = 45.0
_INF = float("inf")


class PoolScaler:
    """Policy for the worker count of one pool. Each pool needs its own object.
    A relative improvement below ``hysteresis`` does not change the count. ``longest_idle_s`` limits
    how long a stream keeps idle workers, in seconds. None means 45 s if workers start within 15 s,
    otherwise no limit. Raises ValueError for an unknown objective or an invalid number.
    """

    def __init__(
        self,
        objective: PoolObjective = "balance",
        *,
        hysteresis: float = 0.005,
        longest_idle_s: float | None = None,
    ) -> None:
        if objective not in TIME_WEIGHTS:
            raise ValueError(
                f"unknown objective {objective!r}; available: {', '.join(TIME_WEIGHTS)}"
            )
        if not 0 <= hysteresis < 1:
            raise ValueError(f"hysteresis {hysteresis} is not in the range 0 to 1")
        if longest_idle_s is not None and not longest_idle_s >= 0:
            raise ValueError(f"longest_idle_s {longest_idle_s} is negative")
        self.objective = objective
        self.hysteresis = hysteresis
        self.longest_idle_s = longest_idle_s
        self._weight = TIME_WEIGHTS[objective]
        self._rate = ArrivalRate()
        self._unchanged = Unchanged()
        #: Time since which each idle worker is idle, the longest idle worker first.
        self._idle_since: list[float] = []
        self._quiet_since: float | None = None
        self._gaps: deque[float] = deque(maxlen=KEPT_GAPS)
        self._periods = 0
        #: Mean duration in seconds of the tasks that were known last.
        self._call_s = 1.0
        #: Sums until the last decision: seconds that tasks waited or ran; billed worker-seconds.
        self._sojourn_s = self._paid_s = 0.0
        self._last: tuple[float, int] | None = None
        #: Time at which the first task was ready.
        self._began: float | None = None
        #: Time since which more workers are starting than needed.
        self._surplus_since: float | None = None

    def decide(self, view: PoolView, model: TaskModel) -> PoolDecision:
        self._remember(view)
        decision = None
        if view.graph:
            decision = self._unchanged.decision(view)
        if decision is None:
            decision = self._decided(view, model)
            self._unchanged.keep(view, decision)
        return decision

    def _decided(self, view: PoolView, model: TaskModel) -> PoolDecision:
        loads = [(o.weight, load_of(view, o)) for o in outlooks_of(view, model)]
        load = max(loads, key=lambda each: each[0])[1]
        if load.portions:
            self._call_s = max(load.call_s, 1e-3)
        on_way = delays_s(view)
        connected, total = view.busy + view.idle, view.busy + view.idle + len(on_way)
        standing = self._standing(view, view.startup_s)
        lasting = self._standing(view, 0.0)
        kept = max(view.busy, min(connected, max(standing, lasting)), self._kept(view, loads))
        sized, reason = self._sized(view, loads, connected, on_way)
        count = max(sized, standing)
        if count > total:
            if standing > sized:
                reason = f"{standing} workers for the rate at which tasks arrive"
        else:
            if view.graph:
                count = self._left_of_graph(view, loads, kept, count, on_way)
            else:
                count = min(total, max(kept, standing, sized if sized > connected else 0))
                if connected <= count < total and unbilled(view, on_way[count - connected :]):
                    count = total
            count, reason = self._fewer(view, count, total, reason)
        count, reason = bounded(view, count, reason)
        if count != total:
            logger.debug(
                "workers: %d busy, %d idle and %d starting, %d queued tasks -> %d workers: %s",
                view.busy,
                view.idle,
                len(on_way),
                load.queued,
                count,
                reason,
            )
        return PoolDecision(count, reason, self._predicted_s(view, load, count, on_way))

    def _left_of_graph(
        self, view: PoolView, loads: Loads, kept: int, count: int, on_way: Sequence[float]
    ) -> int:
        """Return how many connected and starting workers to keep for a graph."""
        connected = view.busy + view.idle
        # If some connected workers are idle, no task waits for a starting worker.
        if kept >= connected:
            kept += min(len(on_way), max(0, count - kept))
        # Workers that the next decision would request again are not released.
        left = min(connected, kept)
        again, _ = self._sized(view, loads, left, on_way[: kept - left])
        return min(connected + len(on_way), max(kept, again))

    def _fewer(self, view: PoolView, count: int, total: int, reason: str) -> tuple[int, str]:
        """Return a reduced count and its reason. The first time, starting workers are kept."""
        # A cancelled worker loses its position in a batch system's queue, so one decision alone
        # does not cancel it, unless the total exceeds the maximum.
        if count == total or not view.arriving:
            self._surplus_since = None
            idle = "idle workers are released: starting others later costs less"
            return count, reason if count == total else idle
        if self._surplus_since is None:
            self._surplus_since = view.now
        within = view.maximum is None or total <= view.maximum
        if within and view.now <= self._surplus_since:
            return total, "there may be too many starting workers"
        return count, "starting workers would connect too late to be of use"

    def _remember(self, view: PoolView) -> None:
        connected = view.busy + view.idle
        ready = sum(view.queued.values()) + sum(map(len, view.running.values()))
        since, before = self._last or (view.now, 0)
        del self._idle_since[: max(0, before - connected)]  # the longest idle workers leave first
        self._sojourn_s += (view.now - since) * ready
        self._paid_s += (view.now - since) * connected
        self._paid_s += view.billed_startup_s * max(0, connected - before)
        self._last = (view.now, connected)
        self._rate.see(view.now, view.submitted)
        del self._idle_since[view.idle :]
        self._idle_since += [view.now] * (view.idle - len(self._idle_since))
        if ready and self._began is None:
            self._began = view.now
        if ready:
            if self._quiet_since is not None:
                self._gaps.append(view.now - self._quiet_since)
                self._quiet_since = None
            self._periods = max(self._periods, 1 + len(self._gaps))
        elif self._quiet_since is None and view.submitted:
            self._quiet_since = view.now

    def _kept(self, view: PoolView, loads: Loads) -> int:
        """Return how many workers to keep: the busy ones, and idle ones for the next tasks."""
        taken = min(view.idle, -(-sum(view.queued.values()) // view.slots))
        if view.graph:
            return view.busy + self._awaited(view, loads, taken)
        hold, last_hold = self._holds(view)
        waits = [view.now - since for since in self._idle_since[: view.idle - taken]]
        keep = taken + sum(idle < hold for idle in waits)
        if waits and view.busy + taken == 0 and keep <= 1:
            keep = int(waits[-1] < last_hold)
        return view.busy + keep

    def _odds(self) -> float:
        return self._weight / max(1e-9, 1 - self._weight)

    def _awaited(self, view: PoolView, loads: Loads, taken: int) -> int:
        """Return how many idle workers to keep for a graph's tasks that are ready soon."""
        # Keeping n workers costs n times the seconds until the tasks are ready. Releasing them
        # costs n later starts, for which the graph waits. The largest number without a loss is
        # kept.
        elapsed = view.now - (self._began if self._began is not None else view.now)
        gains = [0.0] * (view.idle + 1)
        for weight, load in loads:
            whole_s = max(elapsed + load.end_s, 1e-3)
            lost = self._odds() * (self._paid_s + load.work_s) / whole_s
            soon, best = 0, [-_INF] * (view.idle + 1)
            for ready_s, count in load.coming:
                soon += count
                spare = min(view.idle, taken + -(-soon // view.slots))
                released = spare * view.billed_startup_s + lost * view.startup_s
                gain = released - ready_s * (spare + lost)
                for kept in range(taken + 1, spare + 1):
                    best[kept] = max(best[kept], gain)
                if spare == view.idle:
                    break  # the later tasks only keep the same workers for longer
            for kept in range(taken + 1, view.idle + 1):
                # Workers for which no task is known only cost their idle time.
                gain = best[kept] if best[kept] > -_INF else -kept * load.end_s
                gains[kept] += weight * gain / whole_s
        return max((n for n in range(taken + 1, view.idle + 1) if gains[n] >= 0), default=taken)

    def _exchange(self) -> float:
        """Return how many worker-seconds one second of a task's waiting time is worth."""
        # Both change the minimized value by the same amount, given the past time and cost.
        spent = self._paid_s / self._sojourn_s if self._sojourn_s else 1.0
        return self._odds() * spent

    def _holds(self, view: PoolView) -> tuple[float, float]:
        """Return the seconds for which a stream keeps idle workers, and the last idle worker."""
        calls = view.submitted / max(1, self._periods) / view.slots
        saved = served_s(self._call_s, calls, view.startup_s)
        last = hold_s(self._gaps, view.billed_startup_s + self._exchange() * saved)
        hold = min(SHORT_HOLD_S, view.billed_startup_s + self._odds() * view.startup_s)
        limit = self.longest_idle_s
        if limit is None:
            limit = QUICK_HOLD_S if view.startup_s <= QUICK_START_S else _INF
        return min(hold, limit), min(last, limit)

    def _standing(self, view: PoolView, ahead_s: float) -> int:
        """Return the number of workers for the arrival rate expected in ``ahead_s`` seconds."""
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
        self, view: PoolView, loads: Loads, connected: int, on_way: Sequence[float]
    ) -> tuple[int, str]:
        """Return the best worker count for the known tasks, and its reason."""
        now = connected + len(on_way)
        useful = max(load.useful for _, load in loads)
        if not useful:
            return 0, "nothing to do"
        most = max(connected, -(-useful // view.slots))
        if not view.graph:
            then = (self._queue_then(view, load, connected) for _, load in loads)
            most = max(most, connected + max(then))
        if view.maximum is not None:
            most = max(connected, min(most, view.maximum))
        if not most:
            return 0, "no workers are allowed"
        most = max(now, first_try(view, loads, most))
        # The compared counts do not depend on earlier decisions: a repeated decision is the same.
        counts = {*steps(connected, max(most, now)), most, now} - ({0} if not now else set())
        values = dict.fromkeys(counts, 0.0)
        for weight, load in loads:
            for c in counts:
                values[c] += weight * self._value_learning(view, load, connected, on_way, c)
        load = max(loads, key=lambda each: each[0])[1]
        current = values.get(now, _INF)
        best = min(values, key=lambda count: (values[count], count))
        if values[best] == _INF:  # even the maximum is too small for the arriving tasks
            return most, f"{most} workers, the useful maximum, which cannot run all of the tasks"
        # Past spending makes each improvement relatively smaller, so the threshold shrinks as well.
        known = load.work_s / max(1e-9, load.work_s + (0.0 if view.graph else self._paid_s))
        least = self.hysteresis * known
        if view.graph and best < now and on_way and len(loads) > 1:
            least = max(least, CANCELLING_GAIN)
        if current - values[best] <= least:
            return now, "no other count is sufficiently better"
        return best, f"{best} workers for {work_of(loads)}"

    @staticmethod
    def _capacity(
        view: PoolView,
        connected: int,
        on_way: Sequence[float],
        count: int,
        later: tuple[float, float] | None = None,
    ) -> Capacity:
        coming = on_way[: max(0, count - connected)]
        more = max(0, count - connected - len(on_way))
        capacity = Capacity.of(min(count, connected), coming, more, view.startup_s)
        return capacity if later is None else Capacity((*capacity.steps, later))

    def _inflow(self, view: PoolView, ahead_s: float) -> float:
        return 0.0 if view.graph else self._rate.at(ahead_s) / view.slots

    def _queue_then(self, view: PoolView, load: Load, connected: int) -> int:
        """Return the workers that the queue can use by the time a new worker connects."""
        queue = load.queued / view.slots
        middle = self._inflow(view, view.startup_s / 2)
        queue += (middle - connected / load.call_s) * view.startup_s
        return max(-(-load.queued // view.slots), math.ceil(queue))

    def _queue_s(self, view: PoolView, load: Load, capacity: Capacity) -> tuple[float, float]:
        """Return the total waiting seconds of queued tasks, and the seconds until none waits."""
        return capacity.queue_s(
            load.queued / view.slots,
            load.queued_s,
            view.busy,
            lambda ahead_s: self._inflow(view, ahead_s),
        )

    def _time_s(
        self,
        view: PoolView,
        load: Load,
        connected: int,
        on_way: Sequence[float],
        count: int,
        later: tuple[float, float] | None = None,
    ) -> float:
        capacity = self._capacity(view, connected, on_way, count, later)
        _, last = self._queue_s(view, load, capacity)
        whole = last + load.queued_s if load.queued else 0.0
        return max(finish_s(capacity, load.portions), whole) + load.rest_s

    def _value_learning(
        self, view: PoolView, load: Load, connected: int, on_way: Sequence[float], count: int
    ) -> float:
        """Return the value of a count if more workers may follow once durations are known."""
        # A few workers that measure durations can be better than many that turn out superfluous.
        # This is the recourse of a stochastic program of two stages (Birge and Louveaux,
        # Introduction to Stochastic Programming, chapter 1).
        values = [self._value(view, load, connected, on_way, count)]
        if load.learned_s is not None:
            top = max(1, -(-load.useful // view.slots))
            top = top if view.maximum is None else min(top, view.maximum)
            connects = load.learned_s + view.startup_s
            for more in {top - count, (top - count) // 2, (top - count) // 4}:
                if more > 0:
                    later = connects, float(more)
                    values.append(self._value(view, load, connected, on_way, count, later))
        return min(values)

    def _value(
        self,
        view: PoolView,
        load: Load,
        connected: int,
        on_way: Sequence[float],
        count: int,
        later: tuple[float, float] | None = None,
    ) -> float:
        """Return the weighted sum of the logarithms of time and cost, to be minimized."""
        # For a stream, both cover past and present tasks, and those that arrive until a worker
        # requested now has connected.
        new = max(0, count - connected) + (0 if later is None else later[1])
        cost = load.work_s + new * view.billed_startup_s
        if view.graph:
            time = self._time_s(view, load, connected, on_way, count, later)
        else:
            hold, _ = self._holds(view)
            coming = self._inflow(view, view.startup_s / 2) * view.startup_s
            capacity = self._capacity(view, connected, on_way, count, later)
            waited, _ = self._queue_s(view, load, capacity)
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


# Looks --------------------------------------------------------------------------------------------

#: Share of the time since the last event for which a decision holds.
HOLDS_SHARE = 0.05

_State = tuple[object, ...]


class Unchanged:
    """Last decision about a graph's tasks, and the state that led to it."""

    def __init__(self) -> None:
        self._state: _State = ()
        self._decision: PoolDecision | None = None
        #: Times of the last event and of the last computed decision, in seconds.
        self._event_s = self._decided_s = 0.0

    def decision(self, view: PoolView) -> PoolDecision | None:
        """Return the last decision if it still holds, otherwise None."""
        if self._decision is None or _state(view) != self._state:
            return None
        since = view.now - self._decided_s
        if since > HOLDS_SHARE * (self._decided_s - self._event_s):
            return None
        predicted_s = self._decision.predicted_s
        left = None if predicted_s is None else max(0.0, predicted_s - since)
        return replace(self._decision, predicted_s=left)

    def keep(self, view: PoolView, decision: PoolDecision) -> None:
        state = _state(view)
        if state != self._state:
            self._state, self._event_s = state, view.now
        self._decided_s = view.now
        # A decision that changes the number of workers does not hold, since it is an event.
        stays = decision.workers == view.busy + view.idle + len(view.arriving)
        self._decision = decision if stays else None


def _state(view: PoolView) -> _State:
    """Return the part of a view that changes with events, not with time."""
    running = {kind: len(elapsed) for kind, elapsed in view.running.items()}
    bounds = view.minimum, view.maximum, view.slots
    workers = view.busy, view.idle, len(view.arriving)
    # A task that finishes and one that is submitted instead of it are two events.
    waiting = sum(count for _, _, count in view.coming)
    return *bounds, *workers, view.submitted, dict(view.queued), running, waiting


# Pool load ----------------------------------------------------------------------------------------

#: Least spread of the belief about a kind's duration with which the duration is uncertain.
DOUBTFUL_SPREAD = 0.3
#: Share of the uncertain work whose durations must be known before a better decision is possible.
LEARNED_SHARE = 0.8


@dataclass(frozen=True)
class Load:
    """Known work of a pool: running, queued and expected tasks."""

    #: Work that is ready now, or becomes ready before a worker requested now would connect.
    portions: tuple[Portion, ...]
    #: Seconds from when the first work after ``portions`` is ready until all of it has finished.
    rest_s: float
    #: Number of tasks that wait for a worker.
    queued: int
    #: Number of tasks that run, wait for a worker, or become ready before a worker requested now
    #: would connect.
    useful: int
    #: Worker-seconds of all known tasks.
    work_s: float
    #: Seconds from now until the work finishes if no task has to wait for a worker.
    end_s: float
    #: Mean duration in seconds of all known tasks, and of the queued tasks.
    call_s: float
    queued_s: float
    #: Seconds until blocked tasks are ready and their number, the soonest first.
    coming: tuple[tuple[float, int], ...]
    #: Seconds until the durations of most uncertain work are known. None if all are known.
    learned_s: float | None


def outlooks_of(view: PoolView, model: TaskModel) -> list[Outlook]:
    """Return the outlooks in the view. If there are none, make them from the model."""
    if view.outlooks:
        return list(view.outlooks)
    unfinished = Counter(view.queued)
    unfinished.update({kind: len(elapsed) for kind, elapsed in view.running.items()})
    for _, kind, count in view.coming:
        unfinished[kind] += count
    beliefs = Beliefs(model, view.running, view.startup_s, unfinished)
    return [outlook._replace(coming=view.coming) for outlook in outlooks(beliefs, unfinished)]


def load_of(view: PoolView, outlook: Outlook) -> Load:
    """Return the known work of a pool in one outlook."""
    portions: list[Portion] = []
    lengths = outlook.lengths
    means = {kind: lengths.mean_s(kind) for kind in (*view.running, *view.queued)}
    left = [lengths.residual_s(kind, e) for kind, all_e in view.running.items() for e in all_e]
    queued = sum(view.queued.values())
    if left or queued:
        work = sum(left) + sum(count * means[kind] for kind, count in view.queued.items())
        longest = max(left + [means[kind] for kind, count in view.queued.items() if count])
        portions.append(Portion(0.0, work / view.slots, longest))
    useful = len(left) + queued
    soon: list[Portion] = []
    later: list[Portion] = []
    for ready_s, kind, count in outlook.coming:
        mean = means[kind] = lengths.mean_s(kind)
        portion = Portion(ready_s, count * mean / view.slots, mean)
        (soon if ready_s <= view.startup_s else later).append(portion)
        useful += count if ready_s <= view.startup_s else 0
    portions += merged(soon)
    rest_s = 0.0
    if later:
        end = max(p.ready_s + p.longest_s for p in later)
        rest_s = end - min(p.ready_s for p in later)
    counts = [(kind, len(elapsed)) for kind, elapsed in view.running.items()]
    counts += [*view.queued.items(), *((kind, count) for _, kind, count in outlook.coming)]
    calls = sum(count for _, count in counts)
    call_s = sum(means[kind] * count for kind, count in counts) / calls if calls else 1.0
    work_s = sum(p.work_s for p in (*portions, *later))
    queued_s = sum(means[kind] * count for kind, count in view.queued.items()) / max(1, queued)
    end_s = max((p.ready_s + p.longest_s for p in (*portions, *later)), default=0.0)
    return Load(
        tuple(portions),
        rest_s,
        queued,
        useful,
        work_s,
        end_s,
        call_s,
        max(queued_s, 1e-3),
        tuple((ready_s, count) for ready_s, _, count in outlook.coming),
        _learned_s(view, outlook, means),
    )


def _learned_s(view: PoolView, outlook: Outlook, means: Mapping[Kind, float]) -> float | None:
    """Return the seconds until the durations of most uncertain work are known, or None."""
    lengths = outlook.lengths
    connects = 0.0 if view.busy + view.idle else next(iter(delays_s(view)), view.startup_s)
    work_s: dict[Kind, float] = {}
    ends_s: dict[Kind, float] = {}
    for kind, elapsed in view.running.items():
        work_s[kind] = len(elapsed) * means[kind]
        ends_s[kind] = lengths.residual_s(kind, max(elapsed, default=0.0))
    for kind, count in view.queued.items():
        work_s[kind] = work_s.get(kind, 0.0) + count * means[kind]
        ends_s.setdefault(kind, connects + means[kind])
    for ready_s, kind, count in outlook.coming:
        work_s[kind] = work_s.get(kind, 0.0) + count * means[kind]
        ends_s.setdefault(kind, max(connects, ready_s) + means[kind])
    doubtful = [kind for kind in work_s if lengths.doubt(kind) > DOUBTFUL_SPREAD]
    doubts = {kind: work_s[kind] * min(1.0, lengths.doubt(kind)) for kind in doubtful}
    left = LEARNED_SHARE * sum(doubts.values())
    for kind in sorted(doubtful, key=lambda kind: ends_s[kind]):
        left -= doubts[kind]
        if left <= 0:
            return ends_s[kind]
    return None


def delays_s(view: PoolView) -> list[float]:
    """Return the ascending seconds until each starting worker is expected to connect."""
    late = 0.1 * view.startup_s
    return sorted(max(view.startup_s - since, late) for since in view.arriving)


# Tried counts -------------------------------------------------------------------------------------

#: Weight of an outlook and the load in it, for all outlooks.
Loads = Sequence[tuple[float, Load]]
#: Ratio between a tried number of added workers and the next one.
STEP_RATIO = 1.25
#: Ratio of the largest to the smallest possible work beyond which nothing is known about it.
NOTHING_KNOWN = 200.0


def work_of(loads: Loads) -> str:
    """Return a phrase for the known work. It gives a range if durations are uncertain."""
    works = sorted(load.work_s for _, load in loads)
    if works[-1] <= 1.1 * works[0]:
        return f"{works[-1]:.0f} worker-seconds of known work"
    return f"{works[0]:.0f} to {works[-1]:.0f} worker-seconds of work: its durations are not known"


def unbilled(view: PoolView, expected_s: Sequence[float]) -> bool:
    """Return whether starting workers are certainly not billed yet."""
    # Start-up times vary, so billing may start in the second half of a start.
    return min(expected_s) > view.startup_s / 2 + view.billed_startup_s


def steps(low: int, high: int) -> list[int]:
    """Return counts from ``low`` to ``high``, both included, with growing steps."""
    counts, count, step = [low], low, 1.0
    while (count := low + round(step)) < high:
        counts.append(count)
        step = max(step + 1, STEP_RATIO * step)
    return [*counts, high]


def first_try(view: PoolView, loads: Loads, most: int) -> int:
    """Return the largest count to try, at most ``most``."""
    # While nothing is known about a graph's work and most of a start is billed, a few workers
    # measure durations first. The geometric mean of 1 and ``most`` limits the factor of error both
    # ways.
    works = [load.work_s for _, load in loads]
    unknown = view.graph and max(works) > NOTHING_KNOWN * min(works)
    if not unknown or view.billed_startup_s <= view.startup_s / 2:
        return most
    return math.ceil(math.sqrt(most))


def bounded(view: PoolView, count: int, reason: str) -> tuple[int, str]:
    """Clamp a count to a pool's bounds. Return it and the reason."""
    high = view.maximum if view.maximum is not None else max(count, view.busy, view.minimum)
    low = max(view.minimum, view.busy)
    bounded = min(max(count, low), high)
    if bounded != count:
        reason = f"{reason}; {count} is outside the bounds {low} .. {high}"
    return bounded, reason


# Policy with the rule of Dask's ``target_duration`` -----------------------------------------------


class TargetDuration:
    """Policy that finishes the known work within a given time, without idle slots."""

    def __init__(self, target_s: float) -> None:
        if not 0 < target_s < math.inf:
            raise ValueError(f"target_duration {target_s!r} is not a positive duration")
        self.target_s = target_s

    def decide(self, view: PoolView, model: TaskModel) -> PoolDecision:
        calls = sum(view.queued.values()) + sum(len(each) for each in view.running.values())
        work_s = sum(count * model.mean_s(kind) for kind, count in view.queued.items())
        work_s += sum(len(each) * model.mean_s(kind) for kind, each in view.running.items())
        slots = min(calls, math.ceil(work_s / self.target_s))
        count = max(math.ceil(slots / view.slots), view.busy, min(calls, 1), view.minimum)
        if view.maximum is not None:
            count = min(count, view.maximum)
        return PoolDecision(
            count, f"{work_s:.3g} s of work in {calls} tasks, to finish within {self.target_s:g} s"
        )


# Division of workers among pools that share a maximum. No I/O -------------------------------------


class Claim(NamedTuple):
    """Number of workers that one pool needs, and the number it requests."""

    #: The larger of the pool's minimum and its busy workers, which it keeps in any case.
    least: int
    #: Desired number of workers if the common maximum allows it.
    wished: int
    #: Pending worker-seconds.
    work_s: float


def shared_out(maximum: int, claims: Mapping[str, Claim]) -> dict[str, int]:
    """Return the number of workers of each pool within a common maximum.
    Every pool gets its ``least``, even above the maximum. Further workers go one by one to pools
    below ``wished``, first to pools without workers, then to those with the most work per worker.
    """
    counts = {tag: claim.least for tag, claim in claims.items()}
    left = maximum - sum(counts.values())
    while left > 0:
        short = [tag for tag, claim in claims.items() if counts[tag] < claim.wished]
        if not short:
            break
        tag = max(short, key=lambda t: (counts[t] == 0, claims[t].work_s / (counts[t] or 1)))
        counts[tag] += 1
        left -= 1
    return counts
