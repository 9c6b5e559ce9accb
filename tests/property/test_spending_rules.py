"""Properties of counted costs and of budgets, for any lives of machines."""

import itertools
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalable.model.costs import Cost, HourlyPrice
from scalable.pricing.budget import Ceiling, Stage, next_ceiling
from scalable.pricing.metering import Charge, Meter

MANAGERS = ("near", "far")
TAGS = ("a", "b")

rates = st.builds(
    HourlyPrice,
    st.floats(0, 1000),
    minimum_s=st.sampled_from([0.0, 60.0, 3600.0]),
    granularity_s=st.sampled_from([0.0, 1.0, 60.0]),
)
prices = st.fixed_dictionaries(
    {m: st.fixed_dictionaries(dict.fromkeys(TAGS, rates)) for m in MANAGERS}
)
#: Each step: seconds that pass, a manager, the units that it reports, and the busy ones.
units = st.frozensets(st.integers(0, 5))
steps = st.lists(st.tuples(st.floats(0, 100), st.sampled_from(MANAGERS), units, units), max_size=20)


def played(prices, steps, on_step=lambda meter, now: None):
    """Return a meter after the steps, and the time."""
    meter, now, began = Meter(0.0, HourlyPrice(0.1)), 0.0, {}
    for manager in MANAGERS:
        meter.price(manager, prices[manager])
    for passed, manager, present, busy in steps:
        now += passed
        names = {f"{manager}-{n}": TAGS[n % 2] for n in present}
        began = {u: t for u, t in began.items() if not u.startswith(manager) or u in names}
        began |= {name: began.get(name, now) for name in names}
        charges = {u: Charge(tag, now - began[u], (u,)) for u, tag in names.items()}
        meter.report(manager, charges, now)
        meter.look({name: int(name[-1]) in busy for name in names}, now)
        on_step(meter, now)
    return meter, now


@given(prices, steps)
def test_costs_never_become_less(prices, steps):
    seen = [0.0]

    def note(meter, now):
        seen.append(meter.costs(now).total.cost)

    played(prices, steps, note)
    assert all(later >= earlier - 1e-9 for earlier, later in itertools.pairwise(seen))


@given(prices, steps)
def test_the_parts_are_the_total_and_idle_time_is_a_part_of_it(prices, steps):
    meter, now = played(prices, steps)
    costs = meter.costs(now)
    total = costs.total
    for parts in (costs.by_tag(), costs.by_manager()):
        whole = sum(parts.values(), costs.scheduler)
        assert math.isclose(whole.cost, total.cost, abs_tol=1e-9)
        assert math.isclose(whole.per_hour, total.per_hour, abs_tol=1e-9)
    assert -1e-9 <= total.idle <= total.cost + 1e-9


@given(prices, steps)
def test_the_bills_of_ended_machines_are_the_cost_of_the_workers(prices, steps):
    meter, now = played(prices, steps)
    before = meter.costs(now)
    live = sum((Cost(bill.cost) for bill in meter.bills()), Cost())
    bills = meter.end(now)
    assert sum(bill.cost for bill in bills) >= live.cost - 1e-9
    after = meter.costs(now)
    assert after.total.cost >= before.total.cost - 1e-9
    assert after.total.per_hour == pytest.approx(0.1)  # the scheduler alone


@given(prices, steps, steps)
def test_a_scheduler_that_is_started_again_goes_on(prices, steps, more):
    meter, now = played(prices, steps)
    state = json.loads(json.dumps(meter.to_dict(now)))
    again = Meter(now, HourlyPrice(0.1)).go_on(state)
    for manager in MANAGERS:
        again.price(manager, prices[manager])
    assert again.costs(now).total.cost == pytest.approx(meter.costs(now).total.cost)
    names = {unit for life in meter._lives.values() for unit in life.units}
    for each in (meter, again):
        for manager in MANAGERS:
            own = {
                u: Charge(TAGS[int(u[-1]) % 2], 0.0, (u,)) for u in names if u.startswith(manager)
            }
            each.report(manager, own, now + 5.0)
    assert again.costs(now + 5.0).total.cost == pytest.approx(meter.costs(now + 5.0).total.cost)


@given(rates, st.floats(0, 1e6))
def test_a_short_use_costs_the_minimum(rate, seconds):
    assert rate.cost(seconds) >= rate.per_hour * rate.minimum_s / 3600.0 - 1e-9
    assert rate.billed_s(seconds) >= seconds
    assert rate.billed_s(seconds) < max(seconds, rate.minimum_s) + max(rate.granularity_s, 1e-6)


counts = st.fixed_dictionaries(dict.fromkeys(TAGS, st.integers(0, 9)))


@given(st.lists(st.tuples(st.floats(0, 30), counts, counts), min_size=1, max_size=20))
def test_beyond_four_fifths_of_a_budget_no_pool_grows(moments):
    ceiling, spent = Ceiling(), 0.0
    before = None
    for more, wanted, present in moments:
        spent += more
        ceiling = next_ceiling(ceiling, 100.0, spent, wanted=wanted, present=present)
        allowed = ceiling.limited(wanted)
        if spent < 80:
            assert ceiling.stage is Stage.OPEN
            assert allowed == wanted
            continue
        if before is None:
            assert all(allowed[tag] <= present[tag] for tag in TAGS)
        else:
            assert all(allowed[tag] <= before[tag] for tag in TAGS)
        before = allowed
        assert ceiling.stage is (Stage.SPENT if spent >= 100 else Stage.HELD)


@given(counts, counts)
def test_a_raised_budget_lets_the_cluster_go_on(wanted, present):
    spent = next_ceiling(Ceiling(), 10.0, 11.0, wanted=wanted, present=present)
    assert spent.limited(wanted) == {t: min(wanted[t], present[t]) for t in TAGS}
    a_little = next_ceiling(spent, 12.0, 11.0, wanted=wanted, present={})
    assert a_little.limited(wanted) == spent.limited(wanted)
    enough = next_ceiling(spent, 40.0, 11.0, wanted=wanted, present={})
    assert enough.limited(wanted) == wanted
