"""How much memory calls are given at first."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalable.simulation.memory import Use, expected_waste, first_allocation, next_allocation

GB = 10**9


def test_safe_is_the_upper_quantile_with_a_fifth_more() -> None:
    assert first_allocation([Use(i * GB) for i in range(101)], "safe") == 1.2 * 95 * GB
    assert first_allocation([Use(5 * GB)], "safe") == 6 * GB


def test_aggressive_lets_a_rare_large_call_fail_once() -> None:
    samples = [Use(1 * GB)] * 99 + [Use(50 * GB)]
    assert first_allocation(samples, "aggressive") == 1 * GB
    assert first_allocation(samples[-30:], "aggressive") == 1 * GB


def test_aggressive_gives_all_at_once_where_most_need_it() -> None:
    assert first_allocation([Use(1 * GB)] + [Use(50 * GB)] * 99, "aggressive") == 50 * GB


def test_long_calls_count_for_more() -> None:
    short = [Use(1 * GB, 1.0)] * 9 + [Use(10 * GB, 1.0)]
    long = [Use(1 * GB, 1.0)] * 9 + [Use(10 * GB, 1000.0)]
    assert first_allocation(short, "aggressive") == 1 * GB
    assert first_allocation(long, "aggressive") == 10 * GB


def test_waste_by_hand() -> None:
    """6 fits and leaves 4 for 2 s; 20 fails after 60 % of 5 s at 10, and then has 24."""
    assert expected_waste([Use(6, 2.0), Use(20, 5.0)], 10) == 4 * 2 + (0.6 * 10 + 24 - 20) * 5


def test_what_failed_gets_at_least_twice_as_much() -> None:
    assert (next_allocation(10, 5), next_allocation(10, 100)) == (20, 120)


@given(
    st.lists(st.builds(Use, st.integers(1, 10**6), st.floats(0.1, 1e3)), min_size=1, max_size=40)
)
def test_aggressive_wastes_no_more_than_any_sample_would(samples: list[Use]) -> None:
    best = expected_waste(samples, first_allocation(samples, "aggressive"))
    assert best <= min(expected_waste(samples, use.memory) for use in samples) * (1 + 1e-9)


@pytest.mark.parametrize("policy", ["safe", "aggressive", "bold"])
def test_nothing_follows_from_nothing_and_from_unknown_policies(policy: str) -> None:
    with pytest.raises(ValueError, match="no call"):
        first_allocation([], policy)  # type: ignore[arg-type]
    if policy == "bold":
        with pytest.raises(ValueError, match="bold"):
            first_allocation([Use(1.0)], policy)  # type: ignore[arg-type]
