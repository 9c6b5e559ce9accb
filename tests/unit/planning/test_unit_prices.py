"""Prices of single workers, as managers tell them."""

from plans import request

from scalable.model import ComponentSpec, Price, Rate, Starting
from scalable.planning import Prices
from scalable.planning.unit_prices import unit_prices


def test_a_worker_costs_its_cores_and_at_least_the_minimum():
    components = [ComponentSpec("a", cpus=4), ComponentSpec("b", cpus=1)]
    priced = request(components=components, price_per_core_hour=0.5)
    assert unit_prices(priced, Starting(billed_least_s=60.0)) == {
        "a": {"per_hour": 2.0, "minimum_s": 60.0, "granularity_s": 1.0},
        "b": {"per_hour": 0.5, "minimum_s": 60.0, "granularity_s": 1.0},
    }


def test_without_a_price_nothing_is_told():
    assert unit_prices(request(components=[ComponentSpec("a")]), Starting()) == {}


def test_prices_of_a_provider_come_with_its_billing():
    rate = Rate(Price("m", "here", 0.4, minimum_s=30.0, granularity_s=2.0), units=2)
    prices = Prices({"a": 0.2}, rates={"a": rate})
    assert unit_prices(request(components=[ComponentSpec("a")]), Starting(), prices) == {
        "a": {"per_hour": 0.2, "minimum_s": 30.0, "granularity_s": 2.0}
    }
