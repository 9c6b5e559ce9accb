"""Spreads of running times that few calls show."""

import random
from statistics import median

import pytest

from scalable.planning.spreads import GRID, Evidence, SpreadPrior, TaskSpread, UsualSpread

PRIOR = SpreadPrior(0.2, 0.8, 0.6)


def middle(spread, usual):
    chance = random.Random(1)
    return median(spread.draw(usual.draw(chance), chance) for _ in range(2001))


def evidence(spread, count, work=1.0):
    return Evidence((count - 1) * spread**2, count - 1, work)


def test_without_calls_spreads_are_those_of_the_prior():
    assert middle(TaskSpread(PRIOR), UsualSpread(PRIOR)) == pytest.approx(0.2, rel=0.15)


@pytest.mark.parametrize("spread", [0.05, 0.2, 0.8])
def test_more_calls_bring_the_spread_nearer_to_the_measured_one(spread):
    usual = UsualSpread(PRIOR)
    found = [
        middle(TaskSpread(PRIOR, *evidence(spread, count)[:2]), usual) for count in (2, 9, 200)
    ]
    off = [abs(one - spread) for one in found]
    assert off[2] <= off[1] + 0.02
    assert off[1] <= off[0] + 0.02
    assert found[2] == pytest.approx(spread, rel=0.2)


def test_tasks_of_a_workflow_say_how_much_its_others_vary():
    unknown = TaskSpread(PRIOR)
    even = middle(unknown, UsualSpread(PRIOR, [evidence(0.04, 20)] * 4))
    uneven = middle(unknown, UsualSpread(PRIOR, [evidence(0.9, 20)] * 4))
    assert even < 0.1 < 0.4 < uneven


def test_tasks_count_by_their_work():
    long, short = evidence(0.05, 20, work=100.0), evidence(1.0, 20, work=1.0)
    assert UsualSpread(PRIOR, [long, short]).scale == pytest.approx(
        UsualSpread(PRIOR, [long]).scale, rel=0.25
    )


@pytest.mark.parametrize("squares", [0.0, 1e-30, 1e30])
def test_extreme_samples_give_spreads_of_the_grid(squares):
    usual = UsualSpread(PRIOR, [Evidence(squares, 900, 1.0)])
    chance = random.Random(2)
    drawn = TaskSpread(PRIOR, squares, 900).draw(usual.draw(chance), chance)
    assert drawn == (GRID[-1] if squares > 1 else GRID[0])
