"""Prices of single workers, as managers tell them."""

from plans import request

from scalable.model import ComponentSpec, Price, Rate, Starting
from scalable.planning import Prices
from scalable.planning.unit_prices import unit_prices


def test_prices_of_a_provider_come_with_its_billing():
    rate = Rate(Price("m", "here", 0.4, minimum_s=30.0, granularity_s=2.0), units=2)
    prices = Prices({"a": 0.2}, rates={"a": rate})
    assert unit_prices(request(components=[ComponentSpec("a")]), Starting(), prices) == {
        "a": {"per_hour": 0.2, "minimum_s": 30.0, "granularity_s": 2.0}
    }
