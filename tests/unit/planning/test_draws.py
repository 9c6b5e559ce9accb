"""Simulated runs, and what varies in them."""

import random
from dataclasses import replace
from statistics import median, pstdev

import pytest
from plans import calls, problem

from scalable.model import Forecast
from scalable.planning import Knowledge, draws
from scalable.planning.draws import DrawnDurations, draw_runs
from scalable.planning.variation import RunLevel, RunSpread
from scalable.scaling.task_model import Kind, Sample, TaskModel


def measured(*lengths):
    mean = sum(lengths) / len(lengths)
    return Forecast(
        mean, mean, mean, mean, samples=len(lengths), source="history", durations_s=lengths
    )


def lengths_s(work, workers, knowledge=None):
    return sorted(d.time_s for d in draw_runs(problem(work).predicted, work, workers, knowledge))


def test_equal_calls_run_in_waves():
    exact = [calls("x", "a", 10, measured(*[5.0] * 40))]
    still = Knowledge(run_spread=RunSpread(1e-9, 0.1))
    assert median(lengths_s(exact, (4,), still)) == pytest.approx(15.0, rel=0.01)


def test_a_task_starts_after_all_calls_of_the_task_before_it_unless_their_numbers_are_equal():
    long = [*[1.0] * 39, 100.0]
    still = Knowledge(run_spread=RunSpread(1e-9, 0.1))
    first, join = calls("x", "a", 40, measured(*long)), measured(*[10.0] * 40)
    one = lengths_s([first, calls("y", "b", 1, join, after=["x"])], (40, 1), still)
    each = lengths_s([first, calls("y", "b", 40, join, after=["x"])], (40, 1), still)
    assert one[0] == pytest.approx(11.0)
    # Some runs overlap the calls of both tasks, and others do not.
    assert each[0] == pytest.approx(401, rel=0.01)
    assert each[180] >= 500


def test_calls_wait_for_their_share_of_the_calls_before_or_for_all_of_them():
    first = calls("x", "a", 4, measured(10.0, *[10.0] * 39))
    second = calls("y", "b", 2, measured(*[10.0] * 40), after=["x"])
    knowledge = Knowledge(run_spread=RunSpread(1e-9, 0.1))

    def typical(probability):
        known = replace(knowledge, overlaps={("x", "y"): probability})
        return median(lengths_s([first, second], (1, 1), known))

    # One worker does the four calls one after the other. The first call of y waits for two of them,
    # or for all.
    assert typical(0.0) == pytest.approx(60, rel=0.01)
    assert typical(1.0) == pytest.approx(50, rel=0.01)
    both = lengths_s([first, second], (1, 1), knowledge)
    assert both[20] == pytest.approx(50, rel=0.01)
    assert both[180] == pytest.approx(60, rel=0.01)


def test_calls_with_long_paths_behind_them_run_first():
    knowledge = Knowledge(run_spread=RunSpread(1e-9, 0.1))
    short = calls("x", "a", 6, measured(*[10.0] * 40))
    before = calls("y", "a", 1, measured(*[10.0] * 40))
    long = calls("z", "b", 1, measured(*[100.0] * 40), after=["y"])
    # y runs first, or else z would begin after 70 seconds.
    found = lengths_s([short, before, long], (1, 1), knowledge)
    assert median(found) == pytest.approx(110, rel=0.01)


def test_start_up_times_are_those_that_were_measured():
    work = [calls("x", "a", 1, measured(*[5.0] * 40))]
    found = Knowledge(run_spread=RunSpread(1e-9, 0.1), startups_s={"a": (10.0, 100.0)})
    times = lengths_s(work, (1,), found)
    assert times[0] == pytest.approx(15, abs=0.1)
    assert 40 <= sum(time_s >= 104.9 for time_s in times) <= 160


def test_more_measured_calls_give_narrower_runs():
    chance = random.Random(3)
    widths = []
    for count in (2, 20, 200):
        samples = [Sample(Kind("a", "x"), chance.lognormvariate(3, 0.5)) for _ in range(count)]
        forecast = TaskModel(history=samples).forecast(Kind("a", "x"))
        times = lengths_s([calls("x", "a", 40, forecast)], (4,))
        widths.append(times[180] / times[20])
    assert widths == sorted(widths, reverse=True)


def spread_of_runs(levels):
    chance = random.Random(5)
    found = RunSpread(levels=tuple(levels))
    return pstdev(found.draw(chance) for _ in range(4000))


def test_runs_that_differ_say_how_much_the_next_one_may():
    assert spread_of_runs([]) == pytest.approx(spread_of_runs([RunLevel(0.3, 0.0)]))
    alike = spread_of_runs([RunLevel(x, 0.01) for x in (0.01, -0.01, 0.01, -0.01)])
    apart = spread_of_runs([RunLevel(x, 0.0) for x in (-0.3, 0.3, -0.3, 0.3)])
    assert alike < spread_of_runs([]) < apart
    # The standard deviation of the levels is 0.35, and that of the next one beside their mean is
    # larger by the square root of 1 + 1 / 4.
    assert apart == pytest.approx(0.35 * 1.25**0.5, rel=0.15)
    # Runs whose levels are not known well say less.
    assert spread_of_runs([RunLevel(x, 0.3) for x in (-0.3, 0.3, -0.3, 0.3)]) < apart / 2


@pytest.mark.parametrize("known", [2, 40], ids=["a few lengths", "many lengths"])
def test_the_sum_of_many_calls_is_spread_as_if_each_was_drawn(known, monkeypatch):
    forecast = measured(*[1.0 + (i % 2) for i in range(known)])
    model = DrawnDurations(calls("x", "a", 400, forecast))

    def sums():
        chance = random.Random(1)
        return [model.sums([400], 1.0, chance)[0] for _ in range(400)]

    few = sums()
    monkeypatch.setattr(draws, "_MOST_DRAWN", 400)
    each = sums()
    assert median(few) == pytest.approx(median(each), rel=0.05)
    assert pstdev(few) == pytest.approx(pstdev(each), rel=0.25)


def test_the_length_of_a_billion_calls_is_drawn_soon():
    # A draw for each call would take hours.
    work = [calls("x", "a", 10**9, measured(*[5.0] * 40))]
    still = Knowledge(run_spread=RunSpread(1e-9, 0.1))
    assert median(lengths_s(work, (10,), still)) == pytest.approx(5e8, rel=0.1)
