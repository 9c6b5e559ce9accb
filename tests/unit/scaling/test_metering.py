"""Costs of machines that are shared, lost from sight, or short-lived."""

import pytest

from scalable.model.costs import HourlyPrice
from scalable.pricing.budget import Ceiling, Stage, checked_budget, next_ceiling
from scalable.pricing.metering import Charge, Meter


def metered(per_hour=3600.0, **terms):
    meter = Meter(0.0)
    meter.price("m", {"a": HourlyPrice(per_hour, **terms)})
    return meter


def cost(meter, now):
    return meter.costs(now).total.cost


def test_units_on_one_machine_share_its_price():
    meter = metered()
    units = {f"a-{n}": Charge("a", 10.0, (f"a-{n}",), "machine", None, 4) for n in range(3)}
    meter.report("m", units, 10.0)
    assert cost(meter, 10.0) == pytest.approx(40.0)  # it has room for four
    del units["a-0"], units["a-1"]
    assert meter.report("m", units, 12.0) == []
    assert cost(meter, 12.0) == pytest.approx(48.0)
    (bill,) = meter.report("m", {}, 13.0)
    assert (bill.machine, bill.cost) == ("machine", pytest.approx(52.0))


def test_a_machine_may_have_another_price_than_its_pool():
    meter = metered()
    meter.report("m", {"a-0": Charge("a", 5.0, ("a-0",), "big", 7200.0)}, 5.0)
    assert cost(meter, 5.0) == pytest.approx(10.0)


def test_workers_of_a_silent_manager_cost_while_they_are_connected():
    meter = metered()
    meter.report(
        "m", {"a-0": Charge("a", 10.0, ("a-0",)), "a-1": Charge("a", 10.0, ("a-1",))}, 10.0
    )
    meter.look({"a-0": False}, 1000.0)
    assert cost(meter, 1000.0) == pytest.approx(1000.0 + 10.0)
    assert meter.costs(1000.0).total.per_hour == 3600.0
    # Its next process has adopted both: they were there all the time.
    again = {u: Charge("a", 1.0, (u,)) for u in ("a-0", "a-1")}
    assert meter.report("m", again, 1001.0) == []
    assert cost(meter, 1001.0) == pytest.approx(2 * 1001.0)


def test_what_ended_while_its_manager_was_away_costs_up_to_the_last_sign_of_it():
    meter = metered()
    meter.report("m", {"a-0": Charge("a", 10.0, ("a-0",))}, 10.0)
    (bill,) = meter.report("m", {}, 5000.0)
    assert bill.cost == pytest.approx(10.0)


def test_workers_without_a_price_are_named_by_their_manager():
    meter = metered()
    meter.report("other", {"b-0": Charge("b", 10.0, ("b-0",))}, 10.0)
    assert meter.costs(10.0).unpriced == ("other",)
    assert cost(meter, 10.0) == 0.0


def test_a_worker_that_is_lost_may_be_replaced_while_no_pool_grows():
    held = next_ceiling(Ceiling(), 10.0, 8.5, wanted={"a": 5}, present={"a": 3})
    assert held.stage is Stage.HELD
    later = next_ceiling(held, 10.0, 9.0, wanted={"a": 5}, present={"a": 2})
    assert later.allows("a", 5) == 3


@pytest.mark.parametrize("amount", [0, -1, float("nan"), float("inf"), True, "25"])
def test_a_budget_is_a_positive_amount(amount):
    with pytest.raises(Exception, match="is not a positive amount of money"):
        checked_budget(amount)
