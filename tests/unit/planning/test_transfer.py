"""Running times of one place become those of another."""

import math

import pytest

from scalable.planning.transfer import ERROR_OF_PLACE, ERROR_OF_TASK, Transfer, transfers

A, B = ("model", "a"), ("model", "b")


def test_without_common_tasks_the_ratio_is_unknown():
    found = transfers({}, {A: [10.0, 12.0]})
    assert found == {A: Transfer(1.0, math.hypot(ERROR_OF_PLACE, ERROR_OF_TASK))}
    assert transfers({A: [1.0]}, {A: []}) == {}


def test_a_task_on_both_places_tells_the_ratio_for_the_others():
    found = transfers({A: [20.0]}, {A: [10.0], B: [5.0]})
    # Each place's mean has the variance 0.25^2 + 0.05^2 = 0.065; the ratio of task a, ln 2, has
    # 2 x 0.065 + 0.25^2 = 0.1925. The prior has 0.5^2, so the weight of the ratio is
    # 0.25 / (0.25 + 0.1925) = 0.56497, and its variance is 0.25 x (1 - 0.56497) = 0.10876.
    assert math.log(found[B].factor) == pytest.approx(0.56497 * math.log(2), abs=1e-4)
    assert found[B].error == pytest.approx(math.sqrt(0.10876 + 0.25**2), abs=1e-4)


def test_calls_on_the_place_count_against_what_the_other_place_says():
    found = transfers({A: [20.0]}, {A: [10.0]})[A]
    # Own variance 0.065; from the other place 0.5^2 + 0.25^2 + 0.065 = 0.3775; the own weight is
    # 0.3775 / (0.3775 + 0.065) = 0.85311.
    assert math.log(found.factor) == pytest.approx(0.85311 * math.log(2), abs=1e-4)
    assert found.error == pytest.approx((1 - 0.85311) * math.sqrt(0.3125), abs=1e-4)
