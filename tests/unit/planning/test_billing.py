"""Cost of plans as providers bill it."""

import datetime as dt
import math

import pytest
from plans import request, task

from scalable.model import ComponentSpec, Price, Rate, Starting, WorkerRange
from scalable.planning import Knowledge, PlanRequest, Prices, make_plan
from scalable.planning.billing import Always, Billing, old_prices, weighed_spread

STARTING = Starting(startup_s=60.0)
WORKERS = ComponentSpec("a", cpus=2, workers=WorkerRange(4, 4))


def planned(rate, *, always=None, starting=STARTING, tasks=None, asked=None, **fields):
    prices = Prices({"a": rate.per_unit_hour}, rates={"a": rate}, always=always or {})
    spec = request(
        *(tasks or [task("t", "a", 40, 90.0)]), components=[WORKERS], provider="local", **fields
    )
    knowledge = Knowledge(prices=prices, starting=starting, today=dt.date(2026, 11, 1))
    return make_plan(spec, "", knowledge, asked)


@pytest.mark.parametrize(
    ("seconds", "billed"), [(1, 60), (60, 60), (61.2, 62), (3600, 3600), (math.inf, math.inf)]
)
def test_machines_are_billed_by_the_second_for_a_minute_at_least(seconds, billed):
    assert Billing(minimum_s=60.0, granularity_s=1.0).billed_s(seconds) == billed


def test_the_first_seconds_of_a_start_may_be_free():
    assert Billing(unbilled_s=570.0, granularity_s=1.0).billed_s(700.5) == 131
    assert Billing(unbilled_s=570.0).billed_s(100) == 0


def test_workers_on_one_machine_share_its_price():
    terms = Billing(units=8)
    assert [terms.paid_units(n) for n in (0, 1, 8, 9)] == [0, 8, 8, 16]


def test_a_plan_bills_workers_from_their_start_to_the_end_of_the_run():
    made = planned(Rate(Price("m", "here", 3.6)))
    assert made.predicted_time_s == 60 + 10 * 90
    assert made.cost_estimate.total == pytest.approx(4 * 960 * 0.001)
    assert made.cost_estimate.hourly == pytest.approx(4 * 3.6)


def test_the_scheduler_is_paid_from_its_own_start():
    always = {"scheduler": Rate(Price("s", "here", 0.36))}
    made = planned(Rate(Price("m", "here", 3.6)), always=always)
    assert made.cost_estimate.total == pytest.approx(4 * 960 * 0.001 + (960 + 60) * 0.0001)
    assert made.cost_estimate.always_by_name == {"scheduler": 0.36}
    assert "Counted besides workers: scheduler." in "\n".join(made.reasons)
    assert "Not counted: storage, traffic, addresses and logs." in "\n".join(made.reasons)


def test_a_start_is_paid_from_the_moment_that_the_provider_bills():
    billed_late = Starting(startup_s=60.0, billed_s=10.0)
    made = planned(Rate(Price("m", "here", 3.6)), starting=billed_late)
    assert made.cost_estimate.total == pytest.approx(4 * (960 - 50) * 0.001)


def test_a_machine_that_is_not_full_costs_the_same():
    made = planned(Rate(Price("m", "here", 10.8), units=3))
    assert made.cost_estimate.hourly == pytest.approx(2 * 10.8)
    assert made.cost_estimate.total == pytest.approx(2 * 960 * 0.003)


def test_short_runs_cost_a_minute():
    made = planned(
        Rate(Price("m", "here", 3.6)), starting=Starting(5.0), tasks=[task("t", "a", 4, 10.0)]
    )
    assert made.predicted_time_s == 15
    assert made.cost_estimate.total == pytest.approx(4 * 60 * 0.001)


def test_a_range_of_spot_prices_widens_the_interval():
    fixed = planned(Rate(Price("m", "here", 3.6)))
    spot = planned(Rate(Price("m", "here", 7.2, (1.8, 5.4)), spot=1.0))
    assert spot.cost_estimate.total == pytest.approx(fixed.cost_estimate.total)
    low, high = fixed.predicted_cost.billed_interval
    wider = spot.predicted_cost.billed_interval
    assert wider == pytest.approx((low / 2, high * 1.5))


def test_idle_workers_that_are_released_cost_less():
    tasks = [task("t", "a", 41, 90.0)]
    kept = planned(Rate(Price("m", "here", 3.6)), tasks=tasks)
    released = planned(Rate(Price("m", "here", 3.6)), tasks=tasks, adaptive=WorkerRange(0, 4))
    assert released.predicted_cost.billed < kept.predicted_cost.billed
    assert kept.predicted_cost.billed == kept.predicted_cost.held


def test_the_budget_limits_what_is_billed():
    rate = Rate(Price("m", "here", 3.6))
    always = {"scheduler": Rate(Price("s", "here", 3.6))}
    component = ComponentSpec("a", cpus=2)
    work = task("t", "a", 40, 90.0)
    options = {"max_workers": 40}
    spec = request(work, components=[component], provider="local", options=options)
    prices = Prices({"a": 3.6}, rates={"a": rate}, always=always)
    knowledge = Knowledge(prices=prices, starting=STARTING)
    for budget in (5.0, 6.0):
        asked = PlanRequest.parse("minimize time", "aggressive", None, budget)
        made = make_plan(spec, "", knowledge, asked)
        assert made.predicted_cost.billed <= budget
        assert made.cost_estimate.total == made.predicted_cost.billed


def test_old_prices_are_said_with_their_age():
    made = planned(Rate(Price("m", "here", 3.6, date="2026-01-01")))
    assert "The oldest price is of 2026-01-01, 304 days ago" in "\n".join(made.reasons)
    made = planned(Rate(Price("m", "here", 3.6, date="2026-10-01")))
    assert "oldest price" not in "\n".join(made.reasons)
    given = Prices({"a": 1.0}, as_of="2025-01-01")
    assert len(list(old_prices(given, dt.date(2026, 1, 1)))) == 1


def test_nothing_runs_always_without_prices():
    assert Always().cost(math.inf) == 0
    assert weighed_spread([]) == (1.0, 1.0)
    assert weighed_spread([(1.0, (0.5, 2.0)), (3.0, (1.0, 1.0))]) == (0.875, 1.25)
