"""Which counts serve an objective."""

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from plans import UNEVEN, calls, problem, works

from scalable.errors import PlanError
from scalable.planning import OBJECTIVES, PlanRequest
from scalable.planning.frontier import CountBounds, trace
from scalable.planning.objectives import Point, balanced, choose

CHAIN = [calls("x", "a", 2, 10), calls("y", "b", 4, 10, after=["x"])]


def chosen(given, objective, deadline_s=None, policy="aggressive", **more):
    request = PlanRequest.parse(objective, policy, **more)
    return choose(given, request, deadline_s)


def test_a_front_by_hand_of_one_pool():
    # 4 calls of 10 s: as many waves as 4 / workers says; half a call is waited for by each worker
    # but one.
    front = chosen(problem([calls("x", "a", 4, 10)]), "balance").front
    assert [(p.workers, p.time_s, p.cost) for p in front] == [
        ((1,), 40, 40), ((2,), 20, 45), ((4,), 10, 55)
    ]  # fmt: skip


def test_a_front_by_hand_of_two_stages():
    # First what saves 20 s with a worker, then 10 s with one, then 10 s with two.
    front = chosen(problem(CHAIN), "balance").front
    assert [(p.workers, p.time_s, p.cost) for p in front] == [
        ((1, 1), 60, 60), ((1, 2), 40, 65), ((2, 2), 30, 70), ((2, 4), 20, 80)
    ]  # fmt: skip


def test_the_extremes_and_the_balance_by_hand():
    # Scaled, (1, 2) is at (0.5, 0.25) and (2, 2) at (0.25, 0.5): a tie, which fewer workers win.
    assert chosen(problem(CHAIN), "minimize cost").point.workers == (1, 1)
    assert chosen(problem(CHAIN), "balance").point.workers == (1, 2)
    assert chosen(problem(CHAIN), "minimize time").point.workers == (2, 4)


def test_the_balance_is_an_end_only_where_there_is_nothing_between():
    ends = [Point((1,), 10, 10), Point((2,), 5, 20)]
    assert balanced(ends).workers == (1,)
    between = Point((2,), 9.99, 19.9)
    assert balanced([ends[0], between, Point((3,), 5, 20)]) is between


@given(st.lists(st.tuples(st.integers(1, 99), st.integers(0, 9)), min_size=1, max_size=9))
def test_a_balanced_choice_is_never_dominated(found):
    times = sorted({time for time, _ in found}, reverse=True)
    front = [Point((n + 1,), t, c) for n, (t, (_, c)) in enumerate(zip(times, found, strict=False))]
    chosen = balanced(front)
    better = [p for p in front if p.time_s < chosen.time_s and p.cost <= chosen.cost]
    assert better == []


@pytest.mark.parametrize(
    ("deadline_s", "workers"),
    [(60, (1, 1)), (59, (1, 2)), (40, (1, 2)), (30, (2, 2)), (20, (2, 4))],
)
def test_the_fewest_workers_that_end_in_time(deadline_s, workers):
    assert chosen(problem(CHAIN), "minimize cost", deadline_s).point.workers == workers


def test_an_impossible_deadline_is_an_error_with_the_shortest_time():
    with pytest.raises(PlanError, match=r"within 19\.0 s: the shortest possible time is 20\.0 s"):
        chosen(problem(CHAIN), "minimize cost", 19)
    with pytest.raises(PlanError, match=r"30\.0 s with 4 workers, the maximum of the target"):
        chosen(problem(CHAIN, total=4), "minimize time", 29)
    # Six of seven: a seventh alone would not make it shorter, more would.
    with pytest.raises(PlanError, match="with 5 of at most 6 workers of the target") as caught:
        chosen(problem([calls("x", "a", 10, 10)], total=6), "minimize time", 19, "aggressive")
    assert caught.value.hint == "allow at least 20s or more workers"
    with pytest.raises(PlanError, match="more workers would not shorten the run") as caught:
        chosen(problem([calls("x", "a", 2, 10)]), "minimize time", 9)
    assert caught.value.hint == "allow at least 10s"
    with pytest.raises(PlanError, match="pools at their maximum: a, b"):
        chosen(problem(CHAIN, most=1), "balance", 29)


def test_a_guess_that_cannot_end_in_time_is_as_fast_as_it_gets():
    nothing = problem([replace(c, count=0) for c in CHAIN]).planned
    guess = replace(problem(CHAIN), certain=nothing)
    choice = choose(guess, PlanRequest.parse("minimize cost"), 5.0)
    assert (choice.point.workers, choice.in_time) == ((2, 4), False)


def test_prices_say_which_workers_are_few():
    # A second saved in either of two like stages: the cheap pool is the one to grow.
    work = [calls("x", "a", 4, 10), calls("y", "b", 4, 10, after=["x"])]
    assert chosen(problem(work, rates=[5.0, 1.0]), "minimize cost", 60).point.workers == (1, 2)
    assert chosen(problem(work, rates=[1.0, 5.0]), "minimize cost", 60).point.workers == (2, 1)


def test_a_budget_bounds_what_is_paid_until_the_end():
    one = problem([calls("x", "a", 4, 10)], rates=[1.0])
    assert chosen(one, "minimize time", budget=40.0).point.workers == (4,)
    two = problem(CHAIN, rates=[1.0, 1.0])
    paid = {p.workers: sum(p.workers) * p.time_s for p in chosen(two, "balance").front}
    assert paid == {(1, 1): 120, (1, 2): 120, (2, 2): 120, (2, 4): 120}
    with pytest.raises(
        PlanError, match="within the budget of 119 worker-seconds: the cheapest plan costs 120 "
    ):
        chosen(two, "minimize cost", budget=119.0)


def test_the_start_of_workers_makes_many_of_them_dear():
    cheap, dear = (problem([calls("x", "a", 100, 10)], startup=startup) for startup in (0.0, 600.0))
    assert cheap.cost((10,)) - cheap.cost((1,)) == 45
    assert dear.cost((10,)) - dear.cost((1,)) == 45 + 9 * 600
    assert chosen(dear, "balance").point.time_s > 600


@pytest.mark.parametrize("text", ["Minimize Cost", " MINIMIZE  COST ", "minimize cost"])
def test_names_are_read_whatever_their_case(text):
    assert PlanRequest.parse(text).objective == "minimize cost"
    assert PlanRequest.parse(text, "SAFE").policy == "safe"
    assert PlanRequest.parse(text).policy == "safe"
    assert PlanRequest.parse().policy == "manual"


@pytest.mark.parametrize(("arguments", "word"), [
    ((None, "reckless"), "unknown policy 'reckless'"),
    ((None, "safe"), "policy 'safe' needs an objective"),
    ((None, "aggressive"), "needs an objective, a deadline or a budget"),
    (("balance", None, "soon"), "'soon' is not a duration"),
    (("balance", None, 0), "is not a positive duration"),
    (("balance", None, None, -1), "not a positive amount of money"),
    (("balance", None, None, True), "not a positive amount of money"),
])  # fmt: skip
def test_impossible_objectives_are_refused(arguments, word):
    with pytest.raises(PlanError, match=word):
        PlanRequest.parse(*arguments)


def test_a_deadline_is_read_like_other_lengths_of_time():
    assert PlanRequest.parse("balance", deadline="1h30m").deadline_s == 5400
    assert PlanRequest.parse("balance", deadline="02:00:00").deadline_s == 7200
    assert PlanRequest.parse("balance", deadline=90).deadline_s == 90


def test_no_pool_gets_more_workers_than_it_has_calls():
    """Also where a total of all pools leaves room for more."""
    given = problem([calls("t0", "p0", 1, 5), calls("t1", "p0", 1, UNEVEN)], most=3, total=4)
    assert chosen(given, "minimize time", None, "aggressive").point.workers == (2,)


@given(works(), st.integers(1, 12), st.none() | st.integers(4, 20), st.booleans())
def test_counts_grow_from_cost_to_time_and_keep_all_bounds(work, most, total, safe):
    given = problem(work, most=most, total=total)
    assume(total is None or total >= len(given.bounds.least))
    policy = "safe" if safe else "aggressive"
    picks = [chosen(given, objective, None, policy).point for objective in OBJECTIVES]
    cost, time, balance = picks
    for low, middle, high in zip(cost.workers, balance.workers, time.workers, strict=True):
        assert low <= middle <= high
    assert all(_within(given.bounds, point.workers) for point in picks)
    assert time.time_s <= balance.time_s <= cost.time_s
    assert cost.cost <= balance.cost <= time.cost
    useful = [given.predicted.most_useful(pool) for pool in range(len(time.workers))]
    assert all(n <= max(1, most) for n, most in zip(time.workers, useful, strict=True))


@given(works(), st.floats(0.01, 0.99))
def test_no_pool_of_the_cheapest_can_do_with_a_worker_less(work, share):
    given = problem(work, most=12)
    states = trace(given.planned, given.bounds)
    fast, slow = given.time_s(states[-1]), given.time_s(states[0])
    deadline_s = fast + share * (slow - fast)
    counts = chosen(given, "minimize cost", deadline_s).point.workers
    assert given.time_s(counts) <= deadline_s * (1 + 1e-6)
    for pool, count in enumerate(counts):
        if count > 1:
            fewer = [*counts[:pool], count - 1, *counts[pool + 1 :]]
            assert given.time_s(fewer) > deadline_s


@given(works())
def test_each_point_of_a_front_is_faster_and_dearer_than_the_one_before(work):
    front = chosen(problem(work, most=12), "balance").front
    for earlier, later in itertools.pairwise(front):
        assert later.time_s < earlier.time_s
        assert later.cost > earlier.cost
        assert all(a <= b for a, b in zip(earlier.workers, later.workers, strict=True))


def _within(bounds: CountBounds, workers: tuple[int, ...]) -> bool:
    each = zip(bounds.least, workers, bounds.most, strict=True)
    most = math.inf if bounds.total is None else bounds.total
    return bounds.least_total <= sum(workers) <= most and all(
        low <= count <= high for low, count, high in each
    )
