"""How long a graph of calls takes."""

import heapq
import math
import random
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plans import calls, problem

from scalable.model import Forecast
from scalable.planning.network import make_network

UNEVEN = Forecast(70.0, 60.0, 100.0, 150.0, samples=30, source="history")


def finish(work, workers, **options):
    return problem(work, **options).predicted.finish_s(workers)


@pytest.mark.parametrize(
    ("workers", "seconds"), [(1, 100), (2, 50), (3, 40), (4, 30), (5, 20), (9, 20), (10, 10)]
)
def test_calls_that_take_the_same_go_in_whole_waves(workers, seconds):
    assert finish([calls("x", "a", 10, 10)], [workers]) == seconds


def test_slots_count_and_so_does_the_start():
    work = [calls("x", "a", 10, 10)]
    assert finish(work, [1], slots=5) == 20
    assert finish(work, [2], slots=5, startup=7.0) == 17


def test_chains_add_up_and_branches_overlap():
    chain = [calls("x", "a", 4, 10), calls("y", "b", 2, 10, after=["x"])]
    assert finish(chain, [2, 1]) == 20 + 20
    branches = [calls("x", "a", 4, 10), calls("y", "b", 2, 10)]
    assert finish(branches, [2, 1]) == 20
    both = [*branches, calls("z", "c", 1, 5, after=["x", "y"])]
    assert finish(both, [4, 1, 1]) == 20 + 5


def test_two_chains_beside_each_other_do_not_wait_for_each_other():
    work = [calls("x1", "a", 1, 100), calls("x2", "b", 1, 1, after=["x1"]),
            calls("y1", "c", 1, 1), calls("y2", "d", 1, 100, after=["y1"])]  # fmt: skip
    assert finish(work, [1, 1, 1, 1]) == 101


def test_tasks_of_one_pool_share_it():
    work = [calls("x", "a", 10, 10), calls("y", "a", 10, 10)]
    assert finish(work, [10]) == 20
    apart = [calls("x", "a", 10, 10), calls("w", "b", 1, 1), calls("y", "a", 10, 10, after=["w"])]
    assert finish(apart, [1, 1]) == 200
    assert finish(apart, [100, 1]) == 11


def test_a_pool_without_workers_never_ends_unless_it_has_nothing_to_do():
    work = [calls("x", "a", 1, 10), calls("y", "b", 0, 10)]
    assert finish(work, [0, 1]) == math.inf
    assert finish(work, [1, 0]) == 10


def test_calls_of_unequal_length_have_a_tail_and_a_longest_one():
    work = [calls("x", "a", 100, UNEVEN)]
    assert finish(work, [1]) == pytest.approx(7000)
    for workers in (2, 5, 10, 20):
        ideal = 7000 / workers
        assert ideal < finish(work, [workers]) < ideal + 200
    assert finish(work, [1000]) > 150


@pytest.mark.parametrize(("count", "workers"), [(20, 3), (100, 3), (100, 10), (300, 10)])
@pytest.mark.parametrize("spread", [0.2, 0.5, 1.0])
def test_the_estimate_is_close_to_list_schedules_that_are_drawn(count, workers, spread):
    chance = random.Random(7)

    def length():
        return 60 * math.exp(chance.gauss(0, spread))

    q50, q80, q95 = (60 * math.exp(spread * z) for z in (0, 0.8416, 1.6449))
    forecast = Forecast(60 * math.exp(spread**2 / 2), q50, q80, q95, samples=100, source="history")
    ends = []
    for _ in range(200):
        free = [0.0] * workers
        for _ in range(count):
            heapq.heapreplace(free, free[0] + length())
        ends.append(max(free))
    assert finish([calls("x", "a", count, forecast)], [workers]) == pytest.approx(
        median(ends), rel=0.15
    )


@given(st.integers(1, 200), st.floats(0.1, 100), st.floats(0, 2), st.integers(1, 300))
def test_more_workers_are_never_slower(count, q50, spread, workers):
    q80, q95 = q50 * math.exp(0.8416 * spread), q50 * math.exp(1.6449 * spread)
    forecast = Forecast(q50 * math.exp(spread**2 / 2), q50, q80, q95, source="history", samples=9)
    network = make_network([calls("x", "a", count, forecast)], {"a": 1}, {})
    assert network.finish_s([workers + 1]) <= network.finish_s([workers]) * (1 + 1e-12)
