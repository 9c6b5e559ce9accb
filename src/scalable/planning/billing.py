"""Cost of machines as providers bill them. Does no I/O.

Workers on one machine share its price, and idle shares are billed too. If the scheduler and
managers have their own machines, these are billed for the whole run.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from scalable.model import Starting
from scalable.model.prices import OLD_DAYS, Price
from scalable.planning.knowledge import Knowledge, Prices

#: Billed costs that no plan includes.
NOT_COUNTED = "storage, traffic, addresses and logs"
#: Seconds to which billed time is rounded up unless the provider's price says otherwise.
GRANULARITY_S = 1.0


@dataclass(frozen=True)
class Billing:
    """Terms on which one pool's machines are billed."""

    #: Workers on one machine.
    units: int = 1
    #: Unbilled seconds at the start of a machine.
    unbilled_s: float = 0.0
    #: Shortest billed time of a machine.
    minimum_s: float = 0.0
    #: Billed time is rounded up to a multiple of this; 0 for no rounding.
    granularity_s: float = 0.0
    #: Least and greatest cost as multiples of the expected one.
    spread: tuple[float, float] = (1.0, 1.0)
    #: Costs of machines for 1, 2, ... workers, as multiples of one worker's share of a full
    #: machine. Empty if every machine is full-sized.
    smaller: tuple[float, ...] = ()

    def paid_units(self, workers: int) -> float:
        """Return the machines' cost for ``workers``, in shares of one worker on a full machine."""
        full, rest = divmod(workers, self.units)
        if not rest:
            return float(workers)
        return full * self.units + (self.smaller[rest - 1] if self.smaller else self.units)

    def billed_s(self, seconds: float) -> float:
        """Return a machine's billed seconds, given its seconds from request to deletion."""
        paid = max(0.0, seconds - self.unbilled_s)
        if self.granularity_s and math.isfinite(paid):
            paid = math.ceil(paid / self.granularity_s - 1e-9) * self.granularity_s
        return max(self.minimum_s, paid)

    def billed_parts_s(self, seconds: float, workers: int) -> float:
        """Return the billed seconds of several workers, given their total seconds."""
        # Each machine is deleted separately, so rounding adds half the granularity on average.
        paid = max(0.0, seconds - workers * (self.unbilled_s - self.granularity_s / 2))
        return max(workers * self.minimum_s, paid)


@dataclass(frozen=True)
class Always:
    """Machines of the scheduler and managers, which are billed for the whole run."""

    #: Cost of one second of all these machines.
    rate: float = 0.0
    #: Billed seconds before the first worker is requested.
    lead_s: float = 0.0
    minimum_s: float = 0.0
    granularity_s: float = 0.0
    spread: tuple[float, float] = (1.0, 1.0)

    def cost(self, run_s: float) -> float:
        """Return the cost of a run of ``run_s`` seconds from the first worker's request."""
        if not self.rate:
            return 0.0
        terms = Billing(1, 0.0, self.minimum_s, self.granularity_s)
        return self.rate * terms.billed_s(run_s + self.lead_s)


def billing_of(tags: Iterable[str], knowledge: Knowledge, prices: Prices | None) -> list[Billing]:
    """Return the billing of each pool. Without prices it counts plain worker-seconds."""
    return [_billing(tag, knowledge, prices) for tag in tags]


def _billing(tag: str, knowledge: Knowledge, prices: Prices | None) -> Billing:
    if prices is None:
        return Billing()
    starting = knowledge.starting
    startup_s = knowledge.startup_of(tag) or 0.0
    unbilled_s = 0.0 if starting is None else max(0.0, startup_s - starting.billed_s)
    rate = prices.rates.get(tag)
    if rate is None:
        least_s = 0.0 if starting is None else starting.billed_least_s
        return Billing(1, unbilled_s, least_s, 0.0 if starting is None else GRANULARITY_S)
    price = rate.price
    each = rate.per_unit_hour
    return Billing(
        units=rate.units,
        unbilled_s=unbilled_s,
        minimum_s=price.minimum_s,
        granularity_s=price.granularity_s,
        spread=rate.spread,
        smaller=tuple(hourly / each for hourly in rate.smaller) if each else (),
    )


def always_of(prices: Prices | None, starting: Starting | None) -> Always:
    """Return the machines that are needed for the whole run, with their cost."""
    if prices is None or not prices.always:
        return Always()
    rates = list(prices.always.values())
    hourly = sum(rate.per_unit_hour for rate in rates)
    # The scheduler's machine is billed before workers are requested.
    lead_s = 0.0 if starting is None else min(starting.startup_s, starting.billed_s)
    return Always(
        rate=hourly / 3600,
        lead_s=lead_s,
        minimum_s=max(rate.price.minimum_s for rate in rates),
        granularity_s=max(rate.price.granularity_s for rate in rates),
        spread=weighed_spread([(rate.per_unit_hour, rate.spread) for rate in rates]),
    )


def weighed_spread(parts: Sequence[tuple[float, tuple[float, float]]]) -> tuple[float, float]:
    """Return the spread of a sum of costs from the spreads of its parts."""
    total = sum(cost for cost, _ in parts)
    if not total or not math.isfinite(total):
        return 1.0, 1.0
    low = sum(cost * spread[0] for cost, spread in parts) / total
    return low, sum(cost * spread[1] for cost, spread in parts) / total


def hourly_by_tag(workers: Mapping[str, int], prices: Prices) -> dict[str, float]:
    """Return the cost of one hour of each tag's machines."""
    return {
        tag: prices.rates[tag].hourly(count)
        if tag in prices.rates
        else count * prices.hourly_by_tag.get(tag, 0.0)
        for tag, count in workers.items()
    }


def old_prices(prices: Prices, today: dt.date) -> Iterator[str]:
    """Yield a warning if the oldest price in use is out of date."""
    used = [rate.price for rate in (*prices.rates.values(), *prices.always.values())]
    if not used and prices.as_of is not None:
        used = [Price("", "", 0.0, date=prices.as_of)]
    dates = [price.date for price in used if price.date and price.is_old(today)]
    if dates:
        oldest = min(dates)
        age = (today - dt.date.fromisoformat(oldest)).days
        yield (
            f"The oldest price is of {oldest}, {age} days ago (more than {OLD_DAYS}): "
            "write the present ones as `prices` of the target, or install a newer release."
        )
