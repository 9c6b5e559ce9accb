"""Cost that plans predict, beside the cost of simulated runs."""

import pytest

from cost import (
    STARTING,
    billed,
    billing_alone,
    generated,
    knowledge_of,
    prices_of,
    run_case,
    spec_of,
)
from scalable.planning.billing import always_of

CASES = {case.name: case for case in generated() if case.name != "many calls"}


@pytest.mark.parametrize("name", ["equal calls", "short run", "chain"])
def test_plans_predict_what_is_billed(name):
    bill, plan = run_case(CASES[name], 8)
    assert bill == pytest.approx(1, abs=0.02)
    assert plan == pytest.approx(1, abs=0.02)


def test_the_billing_of_a_known_run_is_exact_but_for_its_starts():
    case = CASES["three pools"]
    prices = prices_of(case)
    work = case.make(0)
    knowledge = knowledge_of(case, spec_of(case, work), prices)
    cost, run_s = billed(work, prices, seed=1)
    assert billing_alone(case, prices, knowledge, run_s) == pytest.approx(cost, rel=0.005)
    assert always_of(prices, STARTING).cost(run_s) > 0
