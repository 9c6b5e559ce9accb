"""Metering of the costs of pools and managers from unit lifetimes. This module does no I/O.

A unit is a process, job or object that runs one or more workers. Units may share a machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self

from scalable.model.costs import Cost, Costs, HourlyPrice

#: Seconds for which a machine is assumed to exist without evidence. Later, its cost is counted up
#: to the last evidence, until its manager reports again.
EVIDENCE_S = 30.0


class Charge(NamedTuple):
    """Charged time and price of one unit, as its manager reports them."""

    tag: str
    #: Charged seconds of the unit's machine, as far as its manager has measured them.
    seconds: float
    workers: tuple[str, ...]
    #: Machine that the unit shares with others, or None if the unit is charged alone.
    machine: str | None = None
    #: Price of one hour of the machine. None for ``holds`` times the price of one worker.
    per_hour: float | None = None
    #: Number of units that fit on the machine.
    holds: int = 1


@dataclass(frozen=True)
class Bill:
    """Bill of one machine up to its deletion, or up to now if it exists."""

    machine: str
    manager: str
    tag: str
    seconds: float
    cost: float
    #: Part of the cost for time without tasks.
    idle: float


@dataclass
class _Life:
    manager: str
    tag: str
    rate: HourlyPrice | None
    began: float
    #: Time when the machine was last known to exist.
    seen: float
    #: Seconds with tasks. A unit counts by its share of the machine.
    busy_s: float = 0.0
    units: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def bill(self, machine: str) -> Bill:
        seconds = max(0.0, self.seen - self.began)
        cost = idle = 0.0
        if self.rate is not None:
            cost = self.rate.cost(seconds)
            idle = max(0.0, cost - self.rate.per_hour * self.busy_s / 3600.0)
        return Bill(machine, self.manager, self.tag, seconds, cost, idle)


class Meter:
    """Meter of the costs of a cluster's machines. All times are seconds of one clock.
    Memory grows with the number of pools and existing machines, not with time. ``began`` is the
    time from which the scheduler's machine is charged.
    """

    def __init__(self, began: float, scheduler: HourlyPrice | None = None) -> None:
        self.began = self._looked_at = began
        self._scheduler = scheduler
        self._carried = 0.0
        self._rates: dict[str, Mapping[str, HourlyPrice]] = {}
        self._lives: dict[tuple[str, str], _Life] = {}
        self._settled: dict[tuple[str, str], Cost] = {}
        self._reported_at: dict[str, float] = {}

    @property
    def priced(self) -> bool:
        return self._scheduler is not None or any(self._rates.values()) or bool(self._settled)

    def price(self, manager: str, rates: Mapping[str, HourlyPrice]) -> None:
        """Set a manager's price of one worker for each tag."""
        self._rates[manager] = dict(rates)

    def take_prices(self, other: Meter) -> None:
        self._rates |= other._rates

    # Evidence -------------------------------------------------------------------------------------

    def report(self, manager: str, charges: Mapping[str, Charge], now: float) -> list[Bill]:
        """Record all charged units of a manager, and return the bills of vanished machines."""
        present: dict[str, _Life] = {}
        for unit, charge in charges.items():
            name = unit if charge.machine is None else charge.machine
            life = present.get(name)
            if life is None:
                life = present[name] = self._life(manager, name, charge, now)
                life.units = {}
            life.began = min(life.began, now - charge.seconds)
            life.seen = max(life.seen, now)
            life.units[unit] = charge.workers
        ended = [key for key in self._lives if key[0] == manager and key[1] not in present]
        recent = now - self._reported_at.get(manager, -EVIDENCE_S) < EVIDENCE_S
        self._reported_at[manager] = now
        return [self._settle(key, now if recent else None) for key in ended]

    def _life(self, manager: str, name: str, charge: Charge, now: float) -> _Life:
        life = self._lives.get((manager, name))
        if life is None:
            rate = self._rates.get(manager, {}).get(charge.tag)
            if rate is not None:
                own = charge.per_hour
                rate = replace(rate, per_hour=rate.per_hour * charge.holds if own is None else own)
            elif charge.per_hour is not None:
                rate = HourlyPrice(charge.per_hour)
            life = _Life(manager, charge.tag, rate, began=now - charge.seconds, seen=now)
            self._lives[manager, name] = life
        return life

    def look(self, working: Mapping[str, bool], now: float) -> None:
        """Record which workers are connected (which proves that their machines exist) and busy."""
        passed, self._looked_at = max(0.0, now - self._looked_at), max(now, self._looked_at)
        for life in self._lives.values():
            here = [w for workers in life.units.values() for w in workers if w in working]
            if not here:
                continue
            life.seen = max(life.seen, now)
            busy = sum(any(working.get(w) for w in workers) for workers in life.units.values())
            share = busy / len(life.units)
            life.busy_s += share * min(passed, max(0.0, now - life.began))

    def leave(self, manager: str, now: float) -> list[Bill]:
        """Settle the machines of a manager that has left, and return their bills."""
        return [self._settle(key, now) for key in [k for k in self._lives if k[0] == manager]]

    def end(self, now: float) -> list[Bill]:
        """Settle all machines when the cluster is deleted, and return their bills."""
        return [self._settle(key, now) for key in list(self._lives)]

    def _settle(self, key: tuple[str, str], now: float | None) -> Bill:
        life = self._lives.pop(key)
        if now is not None and now - life.seen < EVIDENCE_S:
            life.seen = max(life.seen, now)
        bill = life.bill(key[1])
        where = life.manager, life.tag
        before = self._settled.get(where, Cost())
        self._settled[where] = before + Cost(bill.cost, bill.idle)
        return bill

    # Results --------------------------------------------------------------------------------------

    def bills(self) -> list[Bill]:
        """Return the bills of the existing machines up to now."""
        return [life.bill(name) for (_, name), life in self._lives.items()]

    def scheduler_cost(self, now: float) -> Cost:
        if self._scheduler is None:
            return Cost(self._carried)
        cost = self._carried + self._scheduler.cost(max(0.0, now - self.began))
        return Cost(cost, per_hour=self._scheduler.per_hour)

    def units(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for life in self._lives.values():
            found[life.tag] = found.get(life.tag, 0) + len(life.units)
        return found

    def costs(self, now: float) -> Costs:
        pools: dict[str, dict[str, Cost]] = {}
        for manager, rates in self._rates.items():
            pools[manager] = {tag: Cost() for tag in rates}
        for (manager, tag), cost in self._settled.items():
            pools.setdefault(manager, {})[tag] = cost
        unpriced = set()
        for (manager, name), life in self._lives.items():
            if life.rate is None:
                unpriced.add(manager)
                continue
            bill = life.bill(name)
            lives = now - life.seen < EVIDENCE_S
            here = Cost(bill.cost, bill.idle, life.rate.per_hour if lives else 0.0)
            own = pools.setdefault(manager, {})
            own[life.tag] = own.get(life.tag, Cost()) + here
        return Costs(pools, self.scheduler_cost(now), tuple(sorted(unpriced)))

    # Across restarts ------------------------------------------------------------------------------

    def to_dict(self, now: float) -> dict[str, Any]:
        return {
            "scheduler": self.scheduler_cost(now).cost,
            "settled": [
                [manager, tag, cost.cost, cost.idle]
                for (manager, tag), cost in self._settled.items()
            ],
            "machines": [
                [
                    *(manager, name, life.tag, life.began, life.seen, life.busy_s),
                    None if life.rate is None else [*_numbers(life.rate)],
                    {unit: list(workers) for unit, workers in life.units.items()},
                ]
                for (manager, name), life in self._lives.items()
            ],
        }

    def go_on(self, state: Mapping[str, Any]) -> Self:
        """Restore the state of an earlier scheduler with the same clock, and return self.
        Machines that managers report again are charged without a gap, others up to the last
        evidence. Raises KeyError, TypeError or ValueError for a damaged state.
        """
        self._carried = float(state["scheduler"])
        for manager, tag, cost, idle in state["settled"]:
            self._settled[str(manager), str(tag)] = Cost(float(cost), float(idle))
        for manager, name, tag, began, seen, busy_s, rate, units in state["machines"]:
            life = _Life(
                manager, tag, None if rate is None else HourlyPrice(*rate), began, seen, busy_s
            )
            life.units = {unit: tuple(workers) for unit, workers in units.items()}
            self._lives[manager, name] = life
        return self


def _numbers(rate: HourlyPrice) -> Sequence[float]:
    return rate.per_hour, rate.minimum_s, rate.granularity_s
