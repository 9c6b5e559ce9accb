"""Choice of machines by price."""

import datetime as dt
import itertools

import pytest

from scalable.model.prices import Offer, Price, Shape
from scalable.pricing.machines import cheapest, packed

GIB = 2**30


def offer(name, cpus, gib, price, gpus=0, spot=None, region="here"):
    shape = Shape(name, cpus, gib * GIB, gpus, "l4" if gpus else None)
    return Offer(shape, Price(name, region, price, spot))


SMALL = offer("small", 2, 8, 0.10)
LARGE = offer("large", 8, 32, 0.36)
HIGH_MEMORY = offer("memory", 2, 16, 0.13)
GPU = offer("gpu", 4, 16, 1.0, gpus=1)
ALL = [LARGE, GPU, HIGH_MEMORY, SMALL]


@pytest.mark.parametrize(
    ("size", "expected"),
    [((1, GIB), SMALL), ((2, 9 * GIB), HIGH_MEMORY), ((3, GIB), LARGE), ((1, GIB, 1), GPU)],
)
def test_the_cheapest_machine_that_fits_is_chosen(size, expected):
    for given in itertools.permutations(ALL):
        assert cheapest(given, *size) is expected


def test_nothing_fits_a_worker_that_is_too_large():
    assert cheapest(ALL, 9, GIB) is None
    assert cheapest(ALL, 1, GIB, 2) is None
    assert packed(ALL, 9, GIB, wanted=3) is None


def test_a_machine_with_gpus_is_not_taken_for_workers_without():
    assert cheapest([GPU], 1, GIB) is None


def test_only_the_named_region_counts():
    there = offer("there", 2, 8, 0.01, region="there")
    assert cheapest([*ALL, there], 1, GIB, region="here") is SMALL


def test_spot_prices_may_choose_another_machine():
    spot = offer("spot", 2, 8, 0.2, spot=(0.01, 0.03))
    assert cheapest([SMALL, spot], 1, GIB) is SMALL
    assert cheapest([SMALL, spot], 1, GIB, spot=1.0) is spot


def test_equal_prices_are_decided_by_the_name():
    one, other = offer("b", 2, 8, 0.1), offer("a", 2, 8, 0.1)
    assert cheapest([one, other], 1, GIB) is other
    assert cheapest([other, one], 1, GIB) is other


def test_workers_are_packed_where_that_costs_least():
    packing = packed(ALL, 1, 4 * GIB, wanted=8)
    assert (packing.offer, packing.units) == (LARGE, 8)
    assert packing.per_unit_hour == pytest.approx(0.045)


def test_few_workers_do_not_pay_for_an_empty_half():
    packing = packed(ALL, 1, 4 * GIB, wanted=2)
    assert (packing.offer, packing.units) == (SMALL, 2)


def test_memory_of_the_system_is_kept_free():
    packing = packed([SMALL], 1, 4 * GIB, wanted=8, reserved_bytes=GIB)
    assert packing.units == 1


def test_the_number_of_workers_on_a_machine_can_be_limited():
    assert packed([LARGE], 1, 4 * GIB, wanted=8, most_units=3).units == 3


def test_old_prices_are_known():
    price = Price("a", "here", 1.0, date="2026-01-01")
    assert not price.is_old(dt.date(2026, 6, 30))
    assert price.is_old(dt.date(2026, 7, 1))
    assert not Price("a", "here", 1.0).is_old(dt.date(2030, 1, 1))


def test_the_price_of_a_mixture_lies_between():
    price = Price("a", "here", 1.0, (0.2, 0.4))
    assert price.expected() == 1.0
    assert price.expected(1.0) == pytest.approx(0.3)
    assert price.hourly(0.5) == pytest.approx((0.6, 0.7))
    assert Price("a", "here", 1.0).hourly(1.0) == (0.0, 1.0)


def test_of_equal_costs_the_smallest_machine_is_taken():
    twice = offer("twice", 4, 16, 0.1995)
    assert packed([twice, SMALL], 2, 4 * GIB, wanted=8).offer is SMALL
    much_less = offer("less", 4, 16, 0.19)
    assert packed([much_less, SMALL], 2, 4 * GIB, wanted=8).offer is much_less
