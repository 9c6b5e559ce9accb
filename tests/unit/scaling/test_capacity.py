"""How long calls wait for workers of which some are still starting, by hand."""

from __future__ import annotations

import pytest

from scalable.scaling.capacity import Capacity


def nobody(ahead_s: float) -> float:
    return 0.0


def test_queued_calls_wait_for_those_that_run() -> None:
    one = Capacity.of(1, [], 0, 60.0)
    assert one.queue_s(10, 10.0, 1, nobody) == pytest.approx((500.0, 100.0))


def test_a_worker_that_joins_takes_one_at_once() -> None:
    """Eight of ten are left after 20 s, one starts with the worker: 7 for two workers."""
    two = Capacity.of(1, [20.0], 0, 60.0)
    assert two.queue_s(10, 10.0, 1, nobody) == pytest.approx((180 + 122.5, 20 + 35))
    assert Capacity.of(1, [], 1, 20.0).queue_s(10, 10.0, 1, nobody) == two.queue_s(
        10, 10.0, 1, nobody
    )


def test_calls_that_come_wait_too() -> None:
    """Nobody is there for 20 s: 2 come, both start with the two workers; one more at half speed."""
    later = Capacity.of(0, [], 2, 20.0)
    assert later.queue_s(0, 10.0, 0, lambda _: 0.1) == pytest.approx((20.0, 20.0))
    waited, end = later.queue_s(1, 10.0, 0, lambda _: 0.1)
    assert (waited, end) == pytest.approx((20 + 20 + 5, 20 + 10))


def test_more_calls_than_workers_can_run_wait_for_ever() -> None:
    one = Capacity.of(1, [], 0, 60.0)
    assert one.queue_s(1, 10.0, 1, lambda _: 0.1) == (float("inf"), float("inf"))
    assert one.queue_s(0, 10.0, 0, lambda _: 0.05) == (0.0, 0.0)


def test_without_workers_nothing_ends() -> None:
    assert Capacity.of(0, [], 0, 60.0).queue_s(1, 10.0, 0, nobody)[1] == float("inf")
