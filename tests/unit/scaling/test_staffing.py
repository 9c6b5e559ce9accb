"""What the gaps of a stream say of its last worker."""

from __future__ import annotations

import pytest

from scalable.scaling.staffing import hold_s, served_s


@pytest.mark.parametrize(
    ("gaps", "held_s"),
    [
        ([], 40.0),  # nothing is known: as long as a start is worth
        ([100.0] * 3, 0.0),  # waiting has never paid
        ([5.0] * 4, 40.0),  # it always has, and a start is worth more than it took
        ([5.0] * 4 + [100.0], 5.0),  # through the short ones it has
        ([30.0] * 4 + [38.0], 1.1 * 38),  # it always has, and a bit more may pay as well
    ],
)
def test_the_last_worker_stays_as_long_as_would_have_been_best(
    gaps: list[float], held_s: float
) -> None:
    assert hold_s(gaps, 40.0) == pytest.approx(held_s)


def test_a_worker_that_is_there_saves_its_calls_the_start() -> None:
    assert served_s(10.0, 1, 60.0) == 60.0
    assert served_s(10.0, 3, 60.0) == 60 + 50 + 40
    assert served_s(10.0, 100, 60.0) == 60 + 50 + 40 + 30 + 20 + 10
    assert served_s(100.0, 5, 60.0) == 60.0
