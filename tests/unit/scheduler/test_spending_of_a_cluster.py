"""Spending of a cluster on a clock that the tests set."""

import asyncio
import logging

import pytest
from distributed import Scheduler

from scalable.clusters.specs import program_price, worker_prices
from scalable.errors import ClusterError
from scalable.model import ComponentSpec, DeploymentSpec, PoolStatus
from scalable.model.costs import HourlyPrice
from scalable.scheduler.limits import Spending
from scalable.scheduler.managers import Demand

PRICE = {"a": {"per_hour": 3600.0, "minimum_s": 0.0, "granularity_s": 0.0}}


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def played(scenario):
    async def play():
        async with Scheduler(protocol="inproc://", dashboard_address=":0") as scheduler:
            clock, demand = Clock(), Demand()
            demand.want("a", 2, before=0, reason="test", source="plan")
            spending = Spending(scheduler, demand, clock=clock)
            spending.price("near", PRICE)
            spending.price("far", PRICE)
            scenario(clock, demand, spending)

    asyncio.run(play())


def units(*names, seconds):
    return {name: ["a", seconds, [name]] for name in names}


def test_the_budget_counts_all_managers_and_warns_once_for_each_stage(caplog):
    rows = []

    def scenario(clock, demand, spending):
        spending.listeners.append(rows.append)
        spending.begin(scheduler=HourlyPrice(360.0), budget=100.0)
        pools = {"a": PoolStatus(wanted=2, running=2)}
        for clock.now in range(1, 41):
            spending.report("near", units("a-0", seconds=float(clock.now)))
            spending.report("far", units("a-1", seconds=float(clock.now)))
            spending.look(pools)
            assert demand.held is None or clock.now * 2.1 >= 80
        for clock.now in range(41, 60):
            spending.report("near", units("a-0", seconds=float(clock.now)))
            spending.report("far", units("a-1", seconds=float(clock.now)))
            spending.look(pools)
        cost = spending.status()
        assert cost["cost"] == pytest.approx(59 * 2.1)
        assert cost["scheduler"]["cost"] == pytest.approx(5.9)
        assert cost["managers"]["far"]["cost"] == pytest.approx(59.0)
        assert (cost["stage"], cost["budget"]) == ("spent", 100.0)
        assert demand.ceiling.limited({"a": 3}) == {"a": 2}

    with caplog.at_level(logging.WARNING, "scalable"):
        played(scenario)
    told = [r.message for r in caplog.records if r.name.startswith("scalable")]
    assert [message.split(" of ")[0] for message in told] == ["81.90", "100.80"]
    assert [r["failure_class"] for r in rows if r["stream"] == "failures"] == [
        "BudgetNearlySpent",
        "BudgetSpent",
    ]


def test_growth_is_refused_with_the_number_and_the_way_out():
    def scenario(clock, demand, spending):
        spending.begin(budget=100.0)
        clock.now = 85.0
        spending.report("near", units("a-0", seconds=85.0))
        pools = {"a": PoolStatus(wanted=2, running=1)}
        spending.look(pools)
        with pytest.raises(
            ClusterError, match=r"85\.00 of the budget of 100\.00 USD .*at most 1 "
        ) as no:
            demand.scale({"a": 2}, pools, source="manual", reason="test")
        assert "set_budget(170)" in no.value.hint
        demand.scale({"a": 2}, pools, source="decision", reason="test")
        assert demand.totals == {"a": 1}  # decisions are lowered
        demand.scale({"a": 0}, pools, source="manual", reason="test")
        with pytest.raises(ClusterError, match="at most 0 "):
            demand.scale({"a": 1}, pools, source="manual", reason="test")
        spending.set_budget(1000.0)
        demand.scale({"a": 5}, pools, source="manual", reason="test")

    played(scenario)


def test_another_scheduler_goes_on_with_costs_and_budget():
    def scenario(clock, demand, spending):
        spending.begin(budget=100.0)
        clock.now = 10.0
        spending.report("near", units("a-0", seconds=10.0))
        spending.set_budget(50.0)
        state = spending.state
        later = Spending(spending._scheduler, demand, clock=clock)
        later.begin(budget=100.0, state=state)
        later.price("near", PRICE)
        assert later.budget == 50.0
        clock.now = 20.0
        later.report("near", units("a-0", seconds=1.0))
        assert later.status()["cost"] == pytest.approx(20.0)
        damaged = Spending(spending._scheduler, demand, clock=clock)
        damaged.begin(budget=100.0, state={"meter": {}})
        assert damaged.budget == 100.0

    played(scenario)


def test_jobs_on_slurm_cost_what_the_manifest_says_and_its_budget_holds_them():
    """The price of a core-hour is that of the target; the scheduler there costs nothing extra."""
    spec = DeploymentSpec(
        "p",
        "hpc",
        "slurm",
        {"a": ComponentSpec("a", cpus=4, memory="1G")},
        price_per_core_hour=0.05,
        budget=1.0,
    )
    prices = worker_prices(spec)
    assert prices["a"]["per_hour"] == pytest.approx(0.2)
    assert program_price(spec, detached=True) is None

    def scenario(clock, demand, spending):
        spending.price("hpc", prices)
        spending.begin(budget=spec.budget)
        pools = {"a": PoolStatus(wanted=2, running=2)}
        hour = 3600.0
        for clock.now, stage, ceiling in (
            (1 * hour, "open", None),  # 0.4
            (2.05 * hour, "held", 2),  # 0.82
            (2.6 * hour, "spent", 2),  # 1.04
        ):
            spending.report("hpc", units("job-1", "job-2", seconds=clock.now))
            spending.look(pools)
            told = spending.status()
            assert told["stage"] == stage
            if ceiling is not None:
                assert demand.ceiling.limited({"a": 5})["a"] == ceiling
        assert told["cost"] == pytest.approx(2 * 0.2 * 2.6)

    played(scenario)


def test_rows_up_to_now_are_written_on_request():
    rows = []

    def scenario(clock, demand, spending):
        spending.listeners.append(rows.append)
        spending.begin(scheduler=HourlyPrice(360.0))
        clock.now = 13.0
        spending.report("near", units("a-0", seconds=13.0))
        assert rows == []
        spending.write_rows()

    played(scenario)
    assert {row["worker"]: row["cost"] for row in rows} == {"a-0": 13.0, "scheduler": 1.3}
