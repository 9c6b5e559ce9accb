"""Prices of targets on AWS and Google Cloud, and where they come from."""

import pytest

from scalable.model import ComponentSpec, DeploymentSpec, ScalePlan, WorkerRange
from scalable.providers.aws.provider import AWSBatchProvider
from scalable.providers.aws.shapes import price_warnings as aws_warnings
from scalable.providers.aws.shapes import quote as aws_quote
from scalable.providers.aws.shapes import region_of as aws_region
from scalable.providers.gcp.config import price_warnings as gcp_warnings
from scalable.providers.gcp.config import quote as gcp_quote
from scalable.providers.gcp.config import region_of as gcp_region
from scalable.providers.gcp.provider import GCPProvider

PARTS = {
    "model": ComponentSpec("model", cpus=2, memory="6G"),
    "small": ComponentSpec("small", cpus=0.25, memory="512Mi"),
}


@pytest.fixture(autouse=True)
def own_state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "aws-config"))
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE", "GOOGLE_CLOUD_REGION"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def spec(provider="aws", components=None, **fields):
    region = {"aws": "us-east-1", "gcp": "us-central1"}[provider]
    model = {"aws": AWSBatchProvider, "gcp": GCPProvider}[provider].options_model
    options = model().model_dump() | {"region": region} | fields.pop("options", {})
    parts = PARTS if components is None else {c.name: c for c in components}
    return DeploymentSpec("p", "t", provider, parts, options=options, **fields)


def test_a_fargate_plan_costs_the_rounded_sizes_and_the_scheduler():
    estimate = AWSBatchProvider().estimate_cost(spec(), ScalePlan({"model": 3, "small": 2}))
    model = 2 * 0.04048 + 6 * 0.004445
    assert estimate.by_tag["model"] == pytest.approx(3 * model)
    assert estimate.by_tag["small"] == pytest.approx(2 * (0.25 * 0.04048 + 0.5 * 0.004445))
    assert set(estimate.always_by_name) == {"scheduler", "manager"}
    assert estimate.hourly == pytest.approx(
        sum(estimate.by_tag.values()) + sum(estimate.always_by_name.values())
    )
    assert estimate.notes == (
        "Workers of 'model' request 2 cpus and 5.588 GiB; Fargate rounds them up to 2 vCPU, 6 GB.",
    )
    assert estimate.source == "https://aws.amazon.com/fargate/pricing/"
    assert estimate.as_of == "2026-09-29"


def test_spot_is_a_range_and_may_be_a_fraction():
    whole = aws_quote(spec(options={"spot": True})).rates["model"]
    part = aws_quote(spec(options={"spot": 0.5})).rates["model"]
    none = aws_quote(spec()).rates["model"]
    assert none.spread == (1.0, 1.0)
    assert whole.spread[0] < 1 < whole.spread[1]
    assert whole.per_unit_hour < part.per_unit_hour < none.per_unit_hour


def test_instances_are_packed_and_named():
    found = aws_quote(spec(options={"cluster_type": "ec2"}))
    model = found.rates["model"]
    assert not model.price.shape.startswith("t3.")
    assert model.units >= 1
    assert f"Workers of 'model' run on {model.price.shape}" in found.notes[0]
    named = aws_quote(spec(options={"cluster_type": "ec2", "instance_type": "t3.xlarge"}))
    assert named.rates["model"].price.shape == "t3.xlarge"
    assert named.rates["model"].units == 2


def test_a_pool_of_one_worker_gets_a_machine_for_one():
    one = ComponentSpec("one", cpus=1, memory="1G", workers=WorkerRange(1, 1))
    assert gcp_quote(spec("gcp", [one])).rates["one"].units == 1
    assert aws_quote(spec("aws", [one], options={"cluster_type": "ec2"})).rates["one"].units == 1


def test_workers_that_fill_no_machine_get_a_smaller_one():
    many = ComponentSpec("many", cpus=1, memory="1G")
    rate = gcp_quote(spec("gcp", [many])).rates["many"]
    assert rate.units == 8
    assert len(rate.smaller) == 7
    assert rate.hourly(1) < rate.price.per_hour == rate.hourly(8)
    assert rate.hourly(9) == pytest.approx(rate.hourly(8) + rate.hourly(1))


def test_gpus_are_priced_with_their_machines():
    model = ComponentSpec("model", cpus=4, memory="8G", gpus=1)
    price = gcp_quote(spec("gcp", [model])).rates["model"].price
    assert price.shape == "n1-standard-4+t4x1"
    assert "model" not in aws_quote(spec("aws", [model])).rates  # Fargate has no GPUs
    on_ec2 = aws_quote(spec("aws", [model], options={"cluster_type": "ec2"})).rates["model"]
    assert on_ec2.price.shape == "g6.xlarge"


def test_a_region_without_prices_has_none_and_that_is_warned_of():
    there = spec(options={"region": "mars-north-1"})
    assert AWSBatchProvider().estimate_cost(there, ScalePlan({"model": 1})) is None
    found = aws_warnings(there)
    assert [d.code for d in found] == ["W_NO_PRICE"]
    assert "model, small in region mars-north-1" in found[0].message
    priced = spec("gcp", options={"region": "mars-north1"}, price_per_core_hour=0.1)
    assert gcp_warnings(priced) == []


def test_prices_of_the_manifest_may_name_types_of_machines():
    own = spec("gcp", prices={"e2-standard-2": 0.001, "nothing": 1.0})
    model = gcp_quote(own).rates["model"]
    assert (model.price.shape, model.price.per_hour) == ("e2-standard-2", 0.001)
    assert model.price.source == "prices of target 't'"
    warned = gcp_warnings(own)
    assert [d.path for d in warned] == [("targets", "t", "prices", "nothing")]


def test_the_region_comes_from_the_target_the_environment_or_the_profile(own_state, monkeypatch):
    assert aws_region({"region": None}) is None
    (own_state / "aws-config").write_text(
        "[default]\nregion = eu-west-1\n[profile work]\nregion = eu-north-1\n"
    )
    assert aws_region({}) == "eu-west-1"
    monkeypatch.setenv("AWS_PROFILE", "work")
    assert aws_region({}) == "eu-north-1"
    monkeypatch.setenv("AWS_REGION", "us-west-2")
    assert aws_region({}) == "us-west-2"
    assert aws_region({"region": "sa-east-1"}) == "sa-east-1"
    assert gcp_region({"zone": "europe-west4-a"}) == "europe-west4"
    assert gcp_region({}) is None
