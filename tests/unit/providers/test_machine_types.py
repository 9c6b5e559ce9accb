"""The machine types that launchers try: the first is the one that plans count."""

from dataclasses import replace

import pytest

from scalable.model import ComponentSpec, DeploymentSpec, Price, WorkerRange
from scalable.providers import quotes
from scalable.providers.aws.instances import Instances
from scalable.providers.aws.provider import AWSBatchProvider
from scalable.providers.aws.settings import settings_at
from scalable.providers.aws.shapes import offers_for as aws_offers
from scalable.providers.aws.shapes import quote as aws_quote
from scalable.providers.gcp.config import candidates, config_of, offers_for
from scalable.providers.gcp.config import quote as gcp_quote
from scalable.providers.gcp.provider import GCPProvider
from scalable.providers.quotes import share_counted
from scalable.providers.remote.cloud import MachineRequest

REGIONS = {"aws": "us-east-1", "gcp": "us-central1"}


@pytest.fixture(autouse=True)
def own_state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "aws-config"))


def spec_of(provider, component, prices=(), **options):
    model = {"aws": AWSBatchProvider, "gcp": GCPProvider}[provider].options_model
    kind = {"cluster_type": "ec2"} if provider == "aws" else {}
    given = model().model_dump() | {"region": REGIONS[provider]} | kind | options
    parts = {component.name: component}
    return DeploymentSpec("p", "t", provider, parts, options=given, prices=dict(prices))


def counted_and_tried(spec, spot=False, count=None):
    """Return the type that the plan counts for a machine, and those that the launcher tries."""
    (component,) = spec.components.values()
    quote = aws_quote(spec) if spec.provider_name == "aws" else gcp_quote(spec)
    rate = quote.rates[component.name]
    units = tuple(f"u{i}" for i in range(count or rate.units))
    size = component.cpus, component.memory_bytes or 0
    request = MachineRequest(
        "m", {}, ("worker",), "f", *size, gpus=component.gpus, units=units, spot=spot
    )
    if spec.provider_name == "aws":
        return rate, Instances(None, settings_at({}, spec), None).types(request)
    config = replace(config_of(spec.options), offers=tuple(offers_for(REGIONS["gcp"], spec)))
    size = [len(units) * each for each in (*size, component.gpus)]
    return rate, candidates(config, *size, spot=share_counted(config.spot_share, request))


PRICES = {
    "aws": {"m6i.2xlarge": 0.02, "c5.4xlarge": 0.03},
    "gcp": {"n2-standard-8": 0.02, "c2-standard-16": 0.03},
}
MODEL = ComponentSpec("model", cpus=2, memory="6G", workers=WorkerRange(0, 4))


@pytest.mark.parametrize("provider", ["aws", "gcp"])
def test_prices_of_the_manifest_decide_what_is_counted_and_what_is_started(provider):
    plain, usual = counted_and_tried(spec_of(provider, MODEL))
    assert plain.price.shape == usual[0]
    cheap = next(iter(PRICES[provider]))
    rate, tried = counted_and_tried(spec_of(provider, MODEL, PRICES[provider]))
    assert rate.price.shape == tried[0] == cheap != usual[0]


@pytest.mark.parametrize("provider", ["aws", "gcp"])
def test_spot_prices_decide_both_where_spot_is_used(provider, monkeypatch):
    region, cheap = REGIONS[provider], next(iter(PRICES[provider]))
    option = "spot" if provider == "aws" else "preemptible"
    on_demand = counted_and_tried(spec_of(provider, MODEL))[0].price
    # Cheapest at spot prices, and far from it on demand.
    tempting = Price(cheap, region, 1.0, spot_per_hour=(0.001, 0.002), date="2026-10-01")
    table = quotes.prices_of
    monkeypatch.setattr(quotes, "prices_of", lambda package: (*table(package), tempting))
    for share in (True, 0.95):
        spec = spec_of(provider, MODEL, **{option: share})
        for spot in (True,) if share == 1 else (True, False):
            rate, tried = counted_and_tried(spec, spot=spot)
            assert rate.price.shape == tried[0] == cheap
    # No spot machine was to be had: the machine in its place is the cheapest on demand.
    _, tried = counted_and_tried(spec_of(provider, MODEL, **{option: True}), spot=False)
    assert cheap not in tried
    assert counted_and_tried(spec_of(provider, MODEL))[0].price == on_demand


@pytest.mark.parametrize("provider", ["aws", "gcp"])
@pytest.mark.parametrize("gpus", [0, 1])
def test_a_machine_that_is_not_full_is_the_one_that_is_counted(provider, gpus):
    part = ComponentSpec("part", cpus=3, memory="5G", gpus=gpus, workers=WorkerRange(0, 40))
    spec = spec_of(provider, part)
    rate, _ = counted_and_tried(spec)
    costs = [*rate.smaller, rate.price.per_hour]
    assert len(costs) == rate.units
    shapes = {o.shape.name: o for o in offers_in(spec)}
    for count, cost in enumerate(costs, 1):
        _, tried = counted_and_tried(spec, count=count)
        assert shapes[tried[0]].price.per_hour == cost
        assert bool(shapes[tried[0]].shape.gpus) == bool(gpus)


def offers_in(spec):
    region = REGIONS[spec.provider_name]
    return aws_offers(region, spec) if spec.provider_name == "aws" else offers_for(region, spec)
