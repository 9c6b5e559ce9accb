"""The tables of prices in the providers' folders."""

import datetime as dt

import pytest

from scalable.model.prices import UNITS
from scalable.providers.aws import shapes as aws
from scalable.providers.aws.shapes import SIZES, fargate_size
from scalable.providers.gcp import config as gcp

GIB = 2**30


@pytest.mark.parametrize("table", [aws, gcp])
def test_every_row_is_whole(table):
    assert len(table.regions()) >= 8
    for region in table.regions():
        given = table.prices(region)
        assert len({price.shape for price in given}) == len(given)
        for price in given:
            assert price.per_hour > 0
            assert price.unit in UNITS
            assert price.minimum_s == 60
            assert price.granularity_s == 1
            assert price.source.startswith("https://")
            assert dt.date(2025, 1, 1) < dt.date.fromisoformat(price.date)
            if price.spot_per_hour:
                low, high = price.spot_per_hour
                assert 0 < low <= high <= price.per_hour


@pytest.mark.parametrize("table", [aws, gcp])
def test_every_priced_instance_has_a_shape(table):
    for region in table.regions():
        named = {price.shape for price in table.prices(region) if price.unit == "instance"}
        assert named == {offer.shape.name for offer in table.instances(region)}
        for offer in table.instances(region):
            assert offer.shape.cpus >= 1
            assert offer.shape.memory_bytes >= GIB
            assert (offer.shape.gpus > 0) == (offer.shape.gpu_type is not None)


def test_an_unknown_region_has_no_prices():
    assert aws.prices("mars-north-1") == []
    assert gcp.instances("mars-north1") == []


def test_a_fargate_task_costs_its_cores_and_its_memory():
    price = aws.fargate_price(fargate_size(4, 8 * GIB), aws.prices("us-east-1"))
    assert price.per_hour == pytest.approx(4 * 0.04048 + 8 * 0.004445)
    assert price.spot_per_hour[0] < price.spot_per_hour[1] < price.per_hour
    assert price.date
    assert aws.fargate_price(fargate_size(4, 8 * GIB), []) is None


def test_known_prices_are_in_the_tables():
    known = {offer.shape.name: offer.price.per_hour for offer in aws.instances("us-east-1")}
    assert known["m6i.large"] == 0.096
    assert known["t3.medium"] == 0.0416
    known = {offer.shape.name: offer.price.per_hour for offer in gcp.instances("us-central1")}
    assert known["e2-standard-4"] == pytest.approx(0.134023)


def test_fargate_has_the_pairs_of_its_documentation():
    pairs = {(size.vcpus, size.memory_mib / 1024) for size in SIZES}
    assert {m for c, m in pairs if c == 0.25} == {0.5, 1, 2}
    assert {m for c, m in pairs if c == 4} == set(range(8, 31))
    assert {m for c, m in pairs if c == 8} == set(range(16, 61, 4))
    assert {m for c, m in pairs if c == 16} == set(range(32, 121, 8))
    assert len(pairs) == len(SIZES)
    for cpus, memory in ((17, GIB), (1, 121 * GIB)):
        with pytest.raises(ValueError, match="16 vCPU, 120 GB"):
            fargate_size(cpus, memory)
