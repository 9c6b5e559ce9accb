"""Plans for a deadline or a budget, without an objective."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plans import UNEVEN, calls, problem, request, task, works

from scalable.errors import PlanError
from scalable.planning import Knowledge, PlanRequest, Prices, make_plan
from scalable.planning.frontier import trace
from scalable.planning.objectives import choose

WORK = [task("simulate", "model", 20, 60.0), task("reduce", "post", 2, 30.0, ["simulate"])]
PRICES = Prices({"model": 1.0, "post": 1.0})


def plan(deadline=None, budget=None, policy="aggressive", tasks=WORK, **knowledge):
    asked = PlanRequest.parse(None, policy, deadline, budget)
    spec = request(*tasks, options={"max_workers": 8})
    return make_plan(spec, "0" * 64, Knowledge(prices=PRICES, **knowledge), asked)


@st.composite
def problems(draw):
    work = draw(works(most_pools=3, most_calls=12))
    pools = len({c.tag for c in work})
    rates = [draw(st.sampled_from([1.0, 2.0, 5.0])) for _ in range(pools)]
    made = problem(work, most=6, rates=rates, startup=draw(st.sampled_from([0.0, 30.0])))
    return replace(
        made, unit=draw(st.sampled_from(["USD", "worker-seconds"])), released=draw(st.booleans())
    )


def times_of(made):
    fast = made.planned_s(trace(made.planned, made.bounds)[-1])
    return fast, max(made.planned_s(made.bounds.least), fast * 1.5)


def all_counts(made):
    """All counts without workers for which there is no call."""
    useful = (min(6, made.planned.most_useful(pool)) for pool in range(len(made.bounds.least)))
    return list(itertools.product(*(range(1, n + 1) for n in useful)))


@given(problems(), st.lists(st.floats(0, 1), min_size=2, max_size=5))
def test_a_tighter_deadline_never_gives_a_cheaper_plan(made, shares):
    fast, slow = times_of(made)
    costs = []
    for share in sorted(shares):
        deadline_s = (fast + share * (slow - fast)) * (1 + 1e-9)
        asked = PlanRequest.parse(None, "aggressive", deadline_s)
        choice = choose(made, asked, deadline_s)
        assert made.planned_s(choice.point.workers) <= deadline_s * (1 + 1e-6)
        assert choice.point in choice.front
        costs.append(made.spent(choice.point.workers))
    assert all(a >= b * (1 - 1e-9) for a, b in itertools.pairwise(costs))


@given(problems(), st.floats(0, 1))
def test_it_is_the_cheapest_of_all_counts_within_the_deadline(made, share):
    fast, slow = times_of(made)
    deadline_s = (fast + share * (slow - fast)) * (1 + 1e-9)
    point = choose(made, PlanRequest.parse(None, "aggressive", deadline_s), deadline_s).point
    least = min(made.spent(n) for n in all_counts(made) if made.planned_s(n) <= deadline_s)
    assert made.spent(point.workers) <= least * 1.01


def test_the_cheapest_need_not_be_on_the_way_to_the_fastest():
    # All workers are paid until the end, so a worker that shortens the other pool's wait may pay.
    work = [
        calls("x", "a", 7, 20.0),
        calls("y", "b", 2, 5.0, ["x"]),
        calls("z", "a", 5, 5.0, ["y"]),
    ]
    made = replace(problem(work, most=6, rates=[1.0, 1.0]), unit="USD")
    asked = PlanRequest.parse(None, "aggressive", 75.0)
    choice = choose(made, asked, 75.0)
    assert choice.point.workers == (4, 1)
    least = min(made.held(n) for n in all_counts(made) if made.planned_s(n) <= 75)
    assert made.held((4, 1)) == least
    explicit = choose(made, PlanRequest.parse("minimize cost", "aggressive", 75.0), 75.0)
    within = [p for p in explicit.front if p.time_s <= 75]
    assert least < min(made.held(p.workers) for p in within)


@given(problems(), st.lists(st.floats(0, 1), min_size=2, max_size=5))
def test_a_larger_budget_never_gives_a_slower_plan(made, shares):
    spent = [made.spent(n) for n in all_counts(made)]
    times = []
    for share in sorted(shares):
        budget = (min(spent) + share * (max(spent) - min(spent))) * (1 + 1e-9) or 1.0
        try:
            point = choose(made, PlanRequest.parse(None, "aggressive", None, budget), None).point
        except PlanError:
            assert not times
            continue
        assert made.spent(point.workers) <= budget
        times.append(point.time_s)
    assert all(a >= b * (1 - 1e-6) for a, b in itertools.pairwise(times))


def test_a_deadline_alone_asks_for_the_lowest_cost():
    loose, tight = plan("1h"), plan("4m")
    assert (loose.objective, loose.policy) == ("minimize cost", "aggressive")
    assert loose.cost_estimate.total <= tight.cost_estimate.total
    assert tight.predicted_time_s <= 240
    assert tight.reasons[0] == (
        "No objective was given: the cheapest plan within the deadline is chosen."
    )
    assert tight.binding == "the deadline"
    assert loose.binding == "none: no other counts cost less"
    # The fewest workers are another question: all of them are paid until the end.
    fewest = make_plan(
        request(*WORK, options={"max_workers": 8}),
        "0" * 64,
        Knowledge(prices=PRICES),
        PlanRequest.parse("minimize cost", "aggressive", "1h"),
    )
    assert sum(fewest.scale_plan.workers_by_tag.values()) == 2
    assert fewest.cost_estimate.total > loose.cost_estimate.total


def test_a_budget_alone_asks_for_the_shortest_time():
    much, little = plan(budget=100.0), plan(budget=0.5)
    assert much.objective == "minimize time"
    assert little.cost_estimate.total <= 0.5
    assert little.predicted_time_s > much.predicted_time_s
    assert "the quickest plan within the budget" in little.reasons[0]


def test_both_limits_hold_or_the_error_tells_the_least():
    assert plan("5m", 100.0).predicted_time_s <= 300
    with pytest.raises(PlanError, match="cheapest plan within the deadline costs 0.50 USD"):
        plan("5m", 0.01)
    with pytest.raises(PlanError, match="shortest possible time is") as caught:
        plan("10s")
    assert "policy aggressive" not in caught.value.hint
    with pytest.raises(PlanError, match="includes the headroom") as caught:
        plan("250s", policy="safe")
    assert caught.value.hint.endswith("or policy aggressive, which has no headroom")


def test_what_is_guessed_exceeds_no_limit_without_saying_so():
    unknown = [task("simulate", "model"), task("reduce", "post", None, None, ["simulate"])]
    made = plan(budget=0.0001, tasks=unknown)
    assert any("exceeds the budget: it costs at least" in reason for reason in made.reasons)


def test_policy_manual_keeps_the_counts_and_compares_the_limits():
    made = plan("10s", 0.01, policy="manual")
    assert (made.objective, made.deadline_s, made.budget) == (None, 10, 0.01)
    assert (
        made.scale_plan
        == make_plan(
            request(*WORK, options={"max_workers": 8}), "0" * 64, Knowledge(prices=PRICES)
        ).scale_plan
    )
    assert "The predicted time exceeds the deadline, 10.0 s." in made.reasons
    assert any("exceeds the budget of 0.01 USD" in reason for reason in made.reasons)


def test_each_choice_tells_what_it_costs_to_be_wrong():
    uneven = {"simulate": UNEVEN, "reduce": UNEVEN}
    front = plan("1h", forecasts=uneven).front
    assert len(front) > 2
    for point in front:
        assert point.time_q80_s >= point.time_s
        assert point.cost_q80 >= point.cost
    assert any(p.time_q80_s > 1.05 * p.time_s for p in front)
