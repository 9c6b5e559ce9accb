"""Counts that the manifest alone gives."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plans import request

from scalable.model import ComponentSpec, TaskSpec, WorkerRange
from scalable.planning import adaptive_bounds, conflicts, make_plan, worker_counts


def spec(components, tasks=(), total=None, option="max_workers", **fields):
    given = {"components": components, "provider": "local", "options": {option: total}}
    return request(*tasks, **given, **fields)


A, B, C = (ComponentSpec(name) for name in "abc")


def test_without_a_total_every_pool_has_one_worker():
    assert worker_counts(spec([A, B, C])) == {"a": 1, "b": 1, "c": 1}


def test_a_written_count_is_the_count():
    five = ComponentSpec("a", workers=WorkerRange(5, 5))
    assert worker_counts(spec([five, B])) == {"a": 5, "b": 1}
    assert worker_counts(spec([five, B], total=8)) == {"a": 5, "b": 3}


def test_a_total_is_shared_out_equally_where_nothing_is_known():
    assert worker_counts(spec([A, B], total=4)) == {"a": 2, "b": 2}
    assert worker_counts(spec([A, B, C], total=4)) == {"a": 2, "b": 1, "c": 1}
    assert worker_counts(spec([A], total=4)) == {"a": 4}


def test_a_pool_that_a_task_names_has_at_least_one_worker():
    tasks = [TaskSpec("x", "a", count=10**6, duration_s=100), TaskSpec("y", "c")]
    counts = worker_counts(spec([A, B, C], tasks, total=2))
    assert counts["a"] == 1
    assert counts["c"] == 1


def test_a_small_total_leaves_pools_empty_that_no_task_names():
    assert worker_counts(spec([A, B], total=1)) == {"a": 1, "b": 0}


def shared_one_by_one(pools, total):
    counts = {tag: low for tag, (low, _, _) in pools.items()}
    for _ in range(total - sum(counts.values())):
        able = [tag for tag, (_, high, _) in pools.items() if high is None or counts[tag] < high]
        if able:
            # The first of equals, as max() has it.
            best = max(able, key=lambda t: (counts[t] == 0, pools[t][2] / (counts[t] or 1)))
            counts[best] += 1
    return counts


POOLS = st.lists(
    st.tuples(
        st.integers(0, 9),
        st.none() | st.integers(9, 60),
        st.sampled_from([1.0, 7.0, 10.0, 10.0, 3600.0]) | st.floats(1e-6, 1e9),
    ),
    min_size=1,
    max_size=6,
)


@given(POOLS, st.integers(0, 500))
def test_a_large_total_is_shared_out_as_one_by_one(rows, beyond):
    pools = {f"p{i}": row for i, row in enumerate(rows)}
    total = sum(low for low, _, _ in rows) + beyond
    components = [ComponentSpec(t, workers=WorkerRange(*row[:2])) for t, row in pools.items()]
    tasks = [TaskSpec(f"of-{t}", t, count=1, duration_s=row[2]) for t, row in pools.items()]
    assert worker_counts(spec(components, tasks, total=total)) == shared_one_by_one(pools, total)


def test_a_total_without_end_is_shared_out_at_once():
    tasks = [TaskSpec("x", "a", count=3, duration_s=10), TaskSpec("y", "b", count=1, duration_s=10)]
    counts = worker_counts(spec([A, B], tasks, total=10**9))
    assert counts == {"a": 750_000_000, "b": 250_000_000}


def test_adaptive_bounds_are_totals_over_pools():
    assert worker_counts(spec([A, B], adaptive=WorkerRange(5, 8))) == {"a": 3, "b": 2}
    assert worker_counts(spec([A, B], total=10, adaptive=WorkerRange(1, 4))) == {"a": 2, "b": 2}


def test_adaptive_pools_begin_with_n_workers_and_grow_to_their_own_maximum():
    given = spec([A], total=4, option="n_workers", adaptive=WorkerRange(1, 16))
    assert worker_counts(given) == {"a": 4}
    assert adaptive_bounds(given).maximum == 16
    assert adaptive_bounds(spec([A], total=4, adaptive=WorkerRange(1, 16))).maximum == 4
    unbounded = spec([A], total=4, option="n_workers", adaptive=WorkerRange(1, None))
    assert adaptive_bounds(unbounded).maximum == 4


def test_a_conflict_states_the_least_workable_value():
    seven = ComponentSpec("a", workers=WorkerRange(7, 7))
    tasks = [TaskSpec("y", "b")]
    (found,) = conflicts(spec([seven, B], tasks, total=4))
    assert found.code == "E_BAD_OPTION"
    assert found.path == ("targets", "t", "max_workers")
    assert "smallest value that works is 8" in found.hint
    (found,) = conflicts(spec([seven], adaptive=WorkerRange(1, 3)))
    assert found.path == ("targets", "t", "adaptive", "maximum")
    assert "7" in found.hint
    (found,) = conflicts(spec([A], total=4, option="n_workers", adaptive=WorkerRange(6, 9)))
    assert found.path == ("targets", "t", "n_workers")
    assert "6" in found.hint


def test_a_plan_is_the_same_each_time_and_says_what_it_costs():
    tasks = [TaskSpec("run", "a", count=10, duration_s=360)]
    component = ComponentSpec("a", cpus=4, memory="2G")
    given = spec([component], tasks, total=2, price_per_core_hour=0.5)
    plan = make_plan(given, "f" * 64)
    assert plan == make_plan(given, "f" * 64)
    shown = plan.to_dict()
    assert {key: shown[key] for key in list(shown)[:6]} == {
        "target_name": "t",
        "provider_name": "local",
        "manifest_lock": "f" * 64,
        "scale_plan": {
            "workers_by_tag": {"a": 2},
            "resources_by_tag": {"a": {"cpus": 4, "memory": "2G", "walltime": None, "gpus": 0}},
        },
        "task_to_component": {"run": "a"},
        "cost_estimate": {
            "total": pytest.approx(2.0), "by_tag": {"a": pytest.approx(4.0)},
            "hourly": pytest.approx(4.0), "currency": "USD",
            "source": "price_per_core_hour of target 't'", "as_of": None, "always_by_name": {},
            "rates": {}, "always": {}, "notes": [],
        },
    }  # fmt: skip
    assert str(plan.scale_plan) == "{'a': ResourceRequest(cpus=4, memory='2G'), count=2}"


components = st.lists(
    st.tuples(st.integers(0, 3), st.one_of(st.none(), st.integers(0, 4))), min_size=1, max_size=5
)


@given(components, st.integers(1, 40), st.data())
def test_counts_hold_every_bound(shapes, total, data):
    made, tasks = [], []
    for position, (low, extra) in enumerate(shapes):
        name = f"c{position}"
        written = data.draw(st.booleans())
        workers = WorkerRange(low, None if extra is None else low + extra) if written else None
        made.append(ComponentSpec(name, workers=workers))
        if data.draw(st.booleans()):
            tasks.append(TaskSpec(f"t{position}", name, count=data.draw(st.integers(1, 9)),
                                  duration_s=data.draw(st.floats(0.1, 99))))  # fmt: skip
    given = spec(made, tasks, total=total)
    if conflicts(given):
        return
    counts = worker_counts(given)
    assert sum(counts.values()) <= total
    for component in made:
        workers = component.workers
        if workers is not None:
            assert workers.minimum <= counts[component.name]
            assert workers.maximum is None or counts[component.name] <= workers.maximum
        elif component.name in {t.component for t in tasks}:
            assert counts[component.name] >= 1
