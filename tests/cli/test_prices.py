"""``scalable prices``, and the question before money is spent."""

import json

import pytest

from scalable.model import CostEstimate, Price, Rate
from scalable.providers import registry
from scalable.providers.local.provider import LocalProvider

MANIFEST = """\
version: 1
project: {name: climate}
targets:
  fargate: {provider: aws, region: us-east-1, image: example/climate:1}
  far: {provider: aws, region: mars-north-1, image: example/climate:1}
  own: {provider: slurm, price_per_core_hour: 0.05, prices: {model: 0.2, nobody: 1}}
  free: {provider: local}
  priced: {provider: local, price_per_core_hour: 0.5}
components:
  model: {cpus: 2, memory: 6G, workers: 3}
  post: {cpus: 1, memory: 2Gi, workers: 1}
tasks:
  simulate: {component: model, count: 30, duration: 2m}
"""


@pytest.fixture(autouse=True)
def manifest(tmp_path, monkeypatch):
    (tmp_path / "scalable.yaml").write_text(MANIFEST)
    monkeypatch.chdir(tmp_path)


def test_the_prices_of_a_cloud_are_shown_with_their_source(invoke):
    result = invoke("prices", "--target", "fargate")
    assert result.code == 0
    lines = result.out.splitlines()
    assert lines[0] == "Target: fargate (provider aws), USD an hour"
    assert [line.split()[0] for line in lines[3:7]] == ["model", "post", "scheduler", "manager"]
    assert lines[3].split() == [
        "model", "fargate", "2", "vCPU", "6", "GB", "1", "0.1076", "0.03228", "to", "0.04217",
        "table", "2026-09-29",
    ]  # fmt: skip
    assert "https://aws.amazon.com/fargate/pricing/" in result.out
    assert "billed for 60 s at least" in " ".join(result.out.split())


def test_the_same_is_had_as_values(invoke):
    data = json.loads(invoke("prices", "--target", "fargate", "--format", "json").out)
    assert data["currency"] == "USD"
    model = data["prices"]["model"]
    assert model["price"]["per_hour"] == pytest.approx(2 * 0.04048 + 6 * 0.004445)
    assert model["price"]["origin"] == "table"
    assert set(data["prices"]) == {"model", "post", "scheduler", "manager"}
    assert data["old"] is False


def test_prices_of_the_manifest_are_shown_and_useless_ones_are_warned_of(invoke):
    result = invoke("prices", "--target", "own")
    rows = [line.split() for line in result.out.splitlines()[3:5]]
    assert rows[0] == ["model", "model", "1", "0.2", "-", "manifest", "-"]
    assert rows[1][:4] == ["post", "post", "1", "0.05"]
    assert "there is no component 'nobody'" in result.err
    assert "prices and price_per_core_hour of target 'own'" in result.out


def test_without_prices_the_way_to_give_them_is_shown(invoke):
    assert "No price is known: write `prices`" in invoke("prices", "--target", "free").out
    far = invoke("prices", "--target", "far")
    assert far.code == 0
    assert "no price is known for workers of model, post in region mars-north-1" in far.err


def test_a_plan_counts_the_scheduler_and_says_what_was_rounded(invoke):
    out = " ".join(invoke("plan", "--target", "fargate").out.split())
    hourly = 3 * (2 * 0.04048 + 6 * 0.004445) + (0.04048 + 2 * 0.004445)
    scheduler = 0.04048 + 4 * 0.004445
    assert f"{hourly + scheduler:.2f} USD an hour" in out
    assert "Fargate rounds them up to 2 vCPU, 6 GB" in out
    assert "Not counted: storage, traffic, addresses and logs." in out
    detached = " ".join(invoke("plan", "--target", "fargate", "--detached").out.split())
    assert "Counted besides workers: scheduler, manager." in detached


def test_a_budget_limits_what_is_billed(invoke):
    result = invoke(
        "plan", "--target", "fargate", "--objective", "minimize cost", "--budget", "0.01"
    )
    assert result.code == 3
    assert "0.01 USD" in result.err


# Before money is spent ----------------------------------------------------------------------------


class Paid(LocalProvider):
    """A provider of this machine that charges for it."""

    name = "paid"

    def estimate_cost(self, spec, plan):
        rate = Rate(Price("m", "here", 3.0, source="a list"))
        tags = dict.fromkeys(plan.workers_by_tag, rate)
        by_tag = {tag: 3.0 * n for tag, n in plan.workers_by_tag.items()}
        return CostEstimate(None, by_tag, sum(by_tag.values()), source="a list", rates=tags)


@pytest.fixture
def paid(tmp_path):
    registry.register_provider("paid", Paid)
    file = tmp_path / "scalable.yaml"
    file.write_text(MANIFEST.replace("  free:", "  paid: {provider: paid}\n  free:"))
    (tmp_path / "workflow.py").write_text("open('started', 'w').close()\n")
    yield tmp_path
    registry.unregister_provider("paid")


def test_a_run_that_costs_money_needs_a_yes(invoke, paid):
    result = invoke("run", "--target", "paid")
    assert result.code == 2
    # 30 calls of 2 min on 3 workers, and a start of 1 s.
    assert "It costs 12.00 USD an hour, 4.00 USD" in result.err
    assert "for the planned work. Run on 'paid'?" in result.err
    assert "Standard input is not a terminal: confirm with --yes" in result.err
    assert not (paid / "started").exists()
    assert invoke("run", "--target", "paid", "--yes").code == 0
    assert (paid / "started").exists()


def test_a_run_on_this_machine_does_not_ask_even_with_a_price(invoke, paid):
    assert invoke("run", "--target", "priced").code == 0
    assert (paid / "started").exists()


def test_a_dry_run_does_not_ask(invoke, paid):
    assert invoke("run", "--target", "paid", "--dry-run").code == 0
    assert not (paid / "started").exists()


def test_up_asks_with_the_cost_of_the_work_and_of_waiting(invoke, paid):
    result = invoke(
        "up", "--name", "one", "--target", "paid", "--idle-timeout", "10m", "--processes"
    )
    assert result.code == 2
    said = " ".join(result.err.split())
    assert "It costs 12.00 USD an hour, 4.00 USD" in said
    assert "up to 2.00 USD while it waits 10 m 00 s for more. Start cluster 'one'" in said
