"""Bounds of pools that follow their load."""

from plans import request

from scalable.clusters.specs import within_bounds
from scalable.model import ComponentSpec, TaskSpec, WorkerRange
from scalable.planning import adaptive_bounds, expectations


def spec(components, tasks=(), total=None, **fields):
    given = {"components": components, "provider": "local", "options": {"max_workers": total}}
    return request(*tasks, **given, **fields)


A, B = ComponentSpec("a"), ComponentSpec("b")
SOME = ComponentSpec("some", workers=WorkerRange(1, 5))
FIXED = ComponentSpec("fixed", workers=WorkerRange(3, 3))


def test_without_adaptive_no_pool_follows_its_load():
    assert adaptive_bounds(spec([A, SOME], total=4)).pools == {}


def test_pools_run_from_zero_or_within_their_own_range():
    bounds = adaptive_bounds(spec([A, SOME, FIXED], adaptive=WorkerRange(0, 9)))
    assert bounds.pools == {"a": WorkerRange(0, None), "some": WorkerRange(1, 5)}
    assert bounds.maximum == 9


def test_a_task_that_names_a_pool_does_not_keep_it_from_zero():
    tasks = [TaskSpec("run", "a", count=100, duration_s=10)]
    assert adaptive_bounds(spec([A], tasks, adaptive=WorkerRange(0, 9))).pools["a"].minimum == 0


def test_the_minimum_of_the_target_is_spread_over_the_pools():
    bounds = adaptive_bounds(spec([A, B, FIXED], adaptive=WorkerRange(6, None)))
    assert {tag: own.minimum for tag, own in bounds.pools.items()} == {"a": 2, "b": 1}
    assert bounds.maximum is None


def test_the_lower_of_two_totals_holds():
    assert adaptive_bounds(spec([A], total=4, adaptive=WorkerRange(0, 9))).maximum == 4
    assert adaptive_bounds(spec([A], total=9, adaptive=WorkerRange(0, 4))).maximum == 4


def test_expectations_come_from_tasks_with_a_duration():
    tasks = [TaskSpec("run", "a", duration_s=10, memory="1G"), TaskSpec("other", "b", count=3)]
    assert expectations(spec([A, B], tasks)) == {"run": ("a", 10, 10**9)}


def test_a_scalers_given_is_held_to_the_bounds():
    given = spec([A, SOME, FIXED], total=8)
    wanted = {"a": 1, "some": 1, "fixed": 3}
    assert within_bounds(given, wanted, {"some": 9}) == {"some": 4}
    assert within_bounds(given, wanted, {"some": 0}) == {"some": 1}
    assert within_bounds(given, wanted, {"a": 9, "some": 9}) == {"a": 3, "some": 2}
    assert within_bounds(given, wanted, {"a": 0}) == {"a": 0}
    assert within_bounds(spec([A]), {"a": 1}, {"a": 99}) == {"a": 99}


def test_a_pool_that_was_scaled_beyond_its_bounds_is_not_moved_back():
    given = spec([A, SOME], total=8)
    assert within_bounds(given, {"a": 0, "some": 7}, {"some": 9}) == {"some": 7}
    assert within_bounds(given, {"a": 9, "some": 0}, {"some": 2}) == {"some": 0}
