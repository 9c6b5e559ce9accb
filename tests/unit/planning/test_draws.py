"""Simulated runs, and what varies in them."""

import random
from statistics import median

import pytest
from plans import calls, problem

from scalable.planning import Knowledge
from scalable.planning.draws import draw_runs
from scalable.planning.variation import RunLevel, RunSpread
from scalable.spec import Forecast


def measured(*lengths):
    mean = sum(lengths) / len(lengths)
    return Forecast(
        mean, mean, mean, mean, samples=len(lengths), source="history", durations_s=lengths
    )


def lengths_s(work, workers, knowledge=None):
    return sorted(d.time_s for d in draw_runs(problem(work).predicted, work, workers, knowledge))


def test_equal_calls_run_in_waves():
    exact = [calls("x", "a", 10, measured(*[5.0] * 40))]
    still = Knowledge(run_spread=RunSpread(1e-9, 1e9))
    assert median(lengths_s(exact, (4,), still)) == pytest.approx(15.0, rel=0.01)


def test_a_task_starts_after_all_calls_of_the_task_before_it_unless_their_numbers_are_equal():
    long = [*[1.0] * 39, 100.0]
    still = Knowledge(run_spread=RunSpread(1e-9, 1e9))
    first, join = calls("x", "a", 40, measured(*long)), measured(*[10.0] * 40)
    one = lengths_s([first, calls("y", "b", 1, join, after=["x"])], (40, 1), still)
    each = lengths_s([first, calls("y", "b", 40, join, after=["x"])], (40, 1), still)
    assert one[0] == pytest.approx(11.0)
    # Some runs overlap the calls of both tasks, and others do not.
    assert each[0] == pytest.approx(401, rel=0.01)
    assert each[180] >= 500


def test_start_up_times_are_those_that_were_measured():
    work = [calls("x", "a", 1, measured(*[5.0] * 40))]
    found = Knowledge(run_spread=RunSpread(1e-9, 1e9), startups_s={"a": (10.0, 100.0)})
    times = lengths_s(work, (1,), found)
    assert times[0] == pytest.approx(15, abs=0.1)
    assert 40 <= sum(time_s >= 104.9 for time_s in times) <= 160


def test_more_measured_calls_give_narrower_runs():
    chance = random.Random(3)
    widths = []
    for count in (2, 20, 200):
        lengths = [chance.lognormvariate(3, 0.5) for _ in range(count)]
        times = lengths_s([calls("x", "a", 40, measured(*lengths))], (4,))
        widths.append(times[180] / times[20])
    assert widths == sorted(widths, reverse=True)


def test_runs_that_differ_say_how_much_the_next_one_may():
    assert RunSpread.of([]) == RunSpread.of([RunLevel(0.3, 0.0)]) == RunSpread()
    alike = RunSpread.of([RunLevel(0.0, 0.01)] * 4)
    apart = RunSpread.of([RunLevel(x, 0.0) for x in (-0.3, 0.3, -0.3, 0.3)])
    assert alike.scale < RunSpread().scale < apart.scale
    # (3 x 0.05^2 + 4 x 0.3^2) / 6, by hand.
    assert apart.scale == pytest.approx(0.2474, abs=1e-4)
    assert apart.freedom == 6
