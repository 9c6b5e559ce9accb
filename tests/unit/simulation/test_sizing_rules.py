"""Other systems' rules, by decisions worked out from their descriptions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scalable.scaling.pool_policy import PoolView
from scalable.scaling.task_model import Kind, TaskModel
from scalable.simulation.result import Startup
from scalable.simulation.rules import (
    RULES,
    DaskAdaptive,
    Fixed,
    HyperQueue,
    JgcriScalable,
    OpenGris,
    Parsl,
)
from scalable.simulation.simulator import simulate
from scalable.simulation.workloads import Call, Terms, Workload

RUN = Kind("run", "simulate")
MODEL = TaskModel()


def decide(rule, view: PoolView) -> int:
    return rule.decide(view, MODEL).workers


def busy(count: int, now: float = 0.0, elapsed: float = 1.0, **more) -> PoolView:
    running = {RUN: [elapsed] * count} if count else {}
    return PoolView(now, 0, 64, wanted=count, busy=count, running=running, **more)


def test_fixed_counts() -> None:
    view = PoolView(0.0, 0, 9)
    assert (decide(Fixed(most=False), view), decide(Fixed(most=True), view)) == (1, 9)


def test_dask_takes_unknown_calls_for_half_a_second() -> None:
    """40 x 0.5 s / 5 s."""
    assert decide(DaskAdaptive(), PoolView(0.0, 0, 64, queued={RUN: 40})) == 4
    assert decide(DaskAdaptive(), PoolView(0.0, 0, 64, queued={RUN: 1})) == 1


def test_dask_follows_a_moving_average() -> None:
    rule = DaskAdaptive()
    rule.ended(RUN, 10.0)
    assert decide(rule, PoolView(0.0, 0, 64, queued={RUN: 10})) == 10  # 20, but only ten calls
    rule.ended(RUN, 2.0)  # mean 6
    assert decide(rule, PoolView(0.0, 0, 64, queued={RUN: 10})) == 10
    rule.ended(RUN, 0.0)
    rule.ended(RUN, 0.0)  # mean 1.5
    assert decide(rule, PoolView(0.0, 0, 64, queued={RUN: 10})) == 3


def test_dask_believes_a_call_that_runs_twice_as_long() -> None:
    rule = DaskAdaptive()
    rule.ended(RUN, 1.0)
    calm = busy(2, elapsed=1.9, queued={RUN: 18})
    assert decide(rule, calm) == 4  # 20 x 1 s / 5 s
    assert decide(rule, replace(calm, running={RUN: [1.9, 3.0]})) == 20  # 20 x 6 s


def test_dask_lets_go_after_three_looks_those_that_have_not_arrived_first() -> None:
    rule = DaskAdaptive()
    idle = PoolView(0.0, 0, 64, wanted=5, idle=3, arriving=[1.0, 1.0])
    assert [decide(rule, idle) for _ in range(3)] == [5, 5, 0]
    waiting = PoolView(0.0, 0, 64, wanted=4, busy=2, arriving=[1.0, 1.0], running={RUN: [0.1, 0.1]})
    rule = DaskAdaptive()
    assert [decide(rule, waiting) for _ in range(3)] == [4, 4, 2]


def test_parsl_starts_a_block_for_each_call() -> None:
    assert decide(Parsl(), busy(2, queued={RUN: 5})) == 7
    assert decide(Parsl(), busy(2, queued={RUN: 500})) == 64


@pytest.mark.parametrize(("scales_in", "later"), [(False, 5), (True, 2)])
def test_parsl_keeps_idle_blocks_while_others_work(scales_in: bool, later: int) -> None:
    rule = Parsl(scales_in=scales_in)
    half = busy(2, idle=3)
    assert decide(rule, half) == 5
    assert decide(rule, replace(half, now=121.0)) == later


def test_parsl_gives_up_all_after_two_quiet_minutes() -> None:
    rule = Parsl()
    quiet = PoolView(0.0, 1, 64, wanted=5, idle=5)
    assert [decide(rule, replace(quiet, now=t)) for t in (0.0, 119.0, 120.0)] == [5, 5, 1]


def test_hyperqueue_has_one_allocation_in_the_queue() -> None:
    first = PoolView(0.0, 0, 64, queued={RUN: 50})
    assert decide(HyperQueue(), first) == 1
    assert decide(HyperQueue(), replace(first, wanted=1, arriving=[3.0])) == 1
    assert decide(HyperQueue(backlog=16), first) == 16
    assert decide(HyperQueue(), busy(3, queued={RUN: 1})) == 4


def test_hyperqueue_workers_leave_after_five_idle_minutes() -> None:
    rule = HyperQueue()
    idle = busy(1, idle=2)
    assert [decide(rule, replace(idle, now=t)) for t in (0.0, 300.0, 301.0)] == [3, 3, 1]


def test_opengris_keeps_one_to_ten_calls_for_each_worker() -> None:
    assert decide(OpenGris(), PoolView(0.0, 0, 64, queued={RUN: 3})) == 1
    assert decide(OpenGris(), busy(2, queued={RUN: 18})) == 2
    assert decide(OpenGris(), busy(2, queued={RUN: 19})) == 3
    assert decide(OpenGris(), busy(2, idle=20)) == 1
    assert decide(OpenGris(), PoolView(0.0, 0, 64, wanted=3, idle=3)) == 0


def test_jgcri_looks_once_a_minute_also_where_nothing_changes() -> None:
    rule = JgcriScalable()
    assert decide(rule, PoolView(0.0, 0, 64)) == 0
    assert decide(rule, PoolView(30.0, 0, 64, queued={RUN: 9})) == 0
    assert decide(rule, PoolView(60.0, 0, 64, queued={RUN: 9})) == 9


@pytest.mark.parametrize(("queued", "count"), [(10, 12), (5, 10), (1, 2), (0, 0)])
def test_jgcri_thresholds(queued: int, count: int) -> None:
    """Ten workers; 10 / 0.8 = 12; between 0.2 and 0.8 nothing; 1 / 0.8 = 2 rounded up."""
    view = busy(10, queued={RUN: queued} if queued else {})
    assert decide(JgcriScalable(), view) == count


@pytest.mark.parametrize("name", RULES)
def test_every_rule_ends_the_work_within_bounds(name: str) -> None:
    calls = [Call(RUN, 5.0 + i % 7, 20.0 * (i // 10)) for i in range(40)]
    workload = Workload("some", tuple(calls), {"run": Terms(0, 6)}, stream=True)
    rule = RULES[name]
    outcome = simulate(
        workload, lambda _: rule.make(), Startup(10.0, 5.0), every_s=rule.every_s or 1.0
    )
    assert outcome.makespan_s >= 60
    assert max(count for _, count in outcome.workers["run"]) <= 6
