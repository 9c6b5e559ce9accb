"""Limits of a cluster: the time after which it stops, and its budget."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from distributed import Scheduler

from scalable.model import PoolStatus
from scalable.model.costs import CURRENCY, HourlyPrice
from scalable.pricing.budget import Stage, checked_budget, describe_spent, next_ceiling
from scalable.pricing.metering import Bill, Charge, Meter
from scalable.protocol.events import Event, billed, failure_event
from scalable.protocol.handlers import Handler, offer
from scalable.protocol.operations import WAITING_TOPIC
from scalable.scheduler.managers import AttachedManager, Demand
from scalable.units import format_amount, format_duration


@dataclass
class Lifetime:
    """Age of one cluster, time since its last work, and time limits in seconds, None for none."""

    #: Time without work, a new client or a change of counts after which the cluster stops.
    idle_timeout_s: float | None = None
    #: Time after its start at which the cluster stops, even if it has work.
    time_to_live_s: float | None = None
    #: Time without a manager's heartbeat after which its idle workers retire.
    manager_grace_s: float = 1800.0
    #: Time after its start at which a batch system stops the scheduler's job. The cluster stops up
    #: to a minute earlier, so that workers can hand over their results.
    walltime_s: float | None = None

    def __post_init__(self) -> None:
        self._began = self._active_at = time.monotonic()
        self._seen: tuple[int, int] = (0, 0)

    @property
    def _walltime_ends_s(self) -> float | None:
        walltime_s = self.walltime_s
        return None if walltime_s is None else walltime_s - min(60.0, 0.1 * walltime_s)

    def look(self, scheduler: Scheduler, ordered_at: float) -> str | None:
        """Return the reason to stop, or None. ``ordered_at`` is the monotonic time of scaling."""
        now = time.monotonic()
        seen = (scheduler.transition_counter, len(scheduler.clients))
        working = any(ws.processing for ws in scheduler.workers.values())
        if seen != self._seen or working or scheduler.unrunnable or scheduler.queued:
            self._active_at = now
        self._seen = seen
        self._active_at = max(self._active_at, ordered_at)
        age_s, ends_s = now - self._began, self._walltime_ends_s
        if self.time_to_live_s is not None and age_s > self.time_to_live_s:
            return f"its time to live of {format_duration(self.time_to_live_s)} has passed"
        if ends_s is not None and age_s > ends_s:
            walltime = format_duration(self.walltime_s or 0.0)
            return (
                f"the walltime of its scheduler's job ({walltime}) is nearly over; set a longer "
                "walltime in the target"
            )
        if self.idle_timeout_s is not None and now - self._active_at > self.idle_timeout_s:
            return f"it had no work for {format_duration(self.idle_timeout_s)}"
        return None

    def ends_at(self) -> tuple[float | None, float | None]:
        """Return when the cluster stops, and when without work, in epoch seconds or None."""
        offset, idle = time.time() - time.monotonic(), self.idle_timeout_s
        known = [end for end in (self.time_to_live_s, self._walltime_ends_s) if end is not None]
        return (
            self._began + min(known) + offset if known else None,
            None if idle is None else self._active_at + idle + offset,
        )


# Spending -----------------------------------------------------------------------------------------

logger = logging.getLogger("scalable.scheduler")

#: Seconds between two rows about the costs of a machine that keeps running.
ROWS_INTERVAL_S = 60.0


class Spending:
    """Counts a cluster's costs, and limits :class:`Demand` to the budget.
    ``clock`` returns epoch seconds that never decrease. ``listeners`` get each row of the record.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        demand: Demand,
        managers: Iterable[AttachedManager] = (),
        clock: Callable[[], float] | None = None,
    ) -> None:
        offset = time.time() - time.monotonic()
        self.budget: float | None = None
        self.listeners: list[Callable[[Event], object]] = []
        self._scheduler = scheduler
        self._demand = demand
        self._clock = clock or (lambda: time.monotonic() + offset)
        self._meter = Meter(self._clock())
        self._rows_at = self._clock()
        self._ended = False
        self._worded: tuple[float | None, Stage] = (None, Stage.OPEN)
        for known in managers:
            self.price(known.attachment.manager, known.attachment.prices)
        offer(scheduler, {Handler.SET_BUDGET: self.set_budget})

    # Facts ----------------------------------------------------------------------------------------

    def begin(
        self,
        *,
        scheduler: HourlyPrice | None = None,
        budget: float | None = None,
        state: Mapping[str, Any] | None = None,
    ) -> None:
        """Start with the cluster's prices and budget, or with an earlier scheduler's state."""
        meter, self._meter = self._meter, Meter(self._clock(), scheduler)
        self._meter.take_prices(meter)
        self.budget = budget
        if not state:
            return
        try:
            self._meter.go_on(state["meter"])
            if state.get("budget") is not None:
                self.budget = checked_budget(state["budget"])
        except (KeyError, TypeError, ValueError) as error:
            logger.warning("could not read the costs so far, counting from 0: %r", error)
            self._meter = Meter(self._clock(), scheduler)
            self._meter.take_prices(meter)

    def price(self, manager: str, prices: Mapping[str, Mapping[str, Any]]) -> None:
        """Set the prices of a manager's workers. The prices are plain values, by tag."""
        self._meter.price(
            manager, {tag: HourlyPrice.from_dict(price) for tag, price in prices.items()}
        )

    @property
    def counts(self) -> bool:
        """True if costs are counted, so that managers must report charges."""
        return self._meter.priced

    def report(self, manager: str, charges: Mapping[str, Sequence[Any]]) -> None:
        """Record the units that a manager is charged for now."""
        if self.counts:
            units = {unit: Charge(*fields) for unit, fields in charges.items()}
            self._record(self._meter.report(manager, units, self._clock()))

    def left(self, manager: str) -> None:
        self._record(self._meter.leave(manager, self._clock()))

    # The budget -----------------------------------------------------------------------------------

    def set_budget(self, amount: float) -> dict[str, Any]:
        """Set the budget, and return the new :meth:`status`. Raises ClusterError if invalid."""
        before, self.budget = self.budget, checked_budget(amount)
        logger.info(
            "the budget is %s %s now; it was %s",
            format_amount(amount, CURRENCY),
            CURRENCY,
            "not set" if before is None else format_amount(before, CURRENCY),
        )
        self._judge({})
        return self.status() or {}

    def look(self, pools: Mapping[str, PoolStatus]) -> None:
        """Count the costs so far, and limit the pools to the budget."""
        if not self.counts:
            return
        now = self._clock()
        if now - self._rows_at >= ROWS_INTERVAL_S:
            self.write_rows()
        else:
            self._meter.look(self._working(), now)
        self._judge(pools)

    def write_rows(self, *, last: bool = False) -> None:
        """Write a row with the costs so far for each machine. ``last`` ends the count."""
        if self._ended or not self.counts:
            return
        self._ended, now = last, self._clock()
        self._rows_at = now
        self._meter.look(self._working(), now)
        self._record(self._meter.end(now) if last else self._meter.bills())
        cost = self._meter.scheduler_cost(now)
        used_s = now - self._meter.began
        self._tell([billed("scheduler", "", "", used_s, cost.cost, cost.idle, self.budget)])

    def _judge(self, pools: Mapping[str, PoolStatus]) -> None:
        demand, charged = self._demand, self._meter.units()
        spent = self._meter.costs(self._clock()).total.cost
        before, budget = demand.ceiling, self.budget
        present = {t: max(charged.get(t, 0), pool.running) for t, pool in pools.items()}
        present = charged | present
        ceiling = next_ceiling(before, budget, spent, wanted=demand.totals, present=present)
        if (budget, ceiling.stage) == self._worded:
            # The words stay, or clients would be notified of each cent.
            demand.limit(ceiling, demand.held, demand.way_out)
            return
        self._worded = budget, ceiling.stage
        held, way_out = self._words(spent, ceiling.stage), self._way_out(spent)
        demand.limit(ceiling, held, way_out)
        if held is not None and before.stage not in (ceiling.stage, Stage.SPENT):
            logger.warning("%s; %s", held, way_out)
            event = {"clients": [], "words": f"{held}; {way_out}"}
            self._scheduler.log_event(WAITING_TOPIC, event)
            spent_all = ceiling.stage is Stage.SPENT
            failure_class = "BudgetSpent" if spent_all else "BudgetNearlySpent"
            self._tell([failure_event(failure_class, held, phase="run")])

    def _words(self, spent: float, stage: Stage) -> str | None:
        if self.budget is None or stage is Stage.OPEN:
            return None
        return f"{describe_spent(spent, self.budget)}, so no pool grows"

    def _way_out(self, spent: float) -> str:
        more = f"{max(1.0, 2 * spent):.0f}"
        name = getattr(self._scheduler, "cluster_name", "")
        verb = f"scalable scale {name} --budget {more}" if name else f"session.set_budget({more})"
        return f"raise the budget, for example with `{verb}`"

    # Results --------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any] | None:
        """Return costs and budget as plain JSON values, or None if nothing has a price."""
        if not self.counts:
            return None
        # The stage is ``open``, ``held`` or ``spent``.
        demand = self._demand
        return {
            **self._meter.costs(self._clock()).to_dict(),
            "budget": self.budget,
            "stage": str(demand.ceiling.stage),
            "words": demand.held,
            "way_out": demand.way_out,
        }

    @property
    def state(self) -> dict[str, Any] | None:
        """State for a restarted scheduler as plain JSON values, or None if nothing has a price."""
        if not self.counts:
            return None
        return {"meter": self._meter.to_dict(self._clock()), "budget": self.budget}

    def _working(self) -> dict[str, bool]:
        workers = self._scheduler.workers.values()
        return {str(ws.name): bool(ws.processing) for ws in workers}

    def _record(self, bills: Iterable[Bill]) -> None:
        self._tell(
            billed(bill.machine, bill.tag, bill.manager, bill.seconds, bill.cost, bill.idle)
            for bill in bills
        )

    def _tell(self, events: Iterable[Event]) -> None:
        for event in events if self.listeners else ():
            for listener in self.listeners:
                listener(event)
