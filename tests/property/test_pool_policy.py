"""Properties of every decision of the pool policy, whatever its rule."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from pool_views import KINDS, applied, informed, views

from scalable.scaling.policy import PoolScaler
from scalable.scaling.pool_policy import PoolView
from scalable.scaling.task_model import Sample, TaskModel

OBJECTIVES = st.sampled_from(["cost", "balance", "time"])
MEANS = st.floats(0.01, 3000)
#: Models that know nothing, what the manifest says, and what other calls took.
MODELS = st.one_of(
    st.builds(TaskModel),
    MEANS.map(informed),
    st.lists(st.tuples(st.sampled_from(KINDS), MEANS), min_size=1, max_size=30).map(
        lambda rows: TaskModel(history=[Sample(kind, seconds) for kind, seconds in rows])
    ),
)

#: Pools without idle workers: a worker idles only while no call waits.
BUSY = views().map(lambda view: replace(view, idle=0, wanted=view.wanted - view.idle))


@given(views(), MODELS, OBJECTIVES, st.lists(st.floats(0, 100), max_size=5))
def test_bounds_and_the_workers_of_running_calls(view, model, objective, pauses) -> None:
    scaler = PoolScaler(objective)
    for pause in (0.0, *pauses):
        view = replace(view, now=view.now + pause)
        decision = scaler.decide(view, model)
        most = math.inf if view.maximum is None else view.maximum
        running = sum(len(elapsed) for elapsed in view.running.values())
        assert view.minimum <= decision.workers <= most
        assert decision.workers >= min(most, max(view.busy, math.ceil(running / view.slots)))
        assert decision.predicted_s is None or decision.predicted_s >= 0
        assert decision.reason
        view = applied(view, max(decision.workers, view.busy))


def turns(counts: Sequence[int]) -> int:
    """How often the direction of the changes turns round."""
    signs = [later > earlier for earlier, later in pairwise(counts) if earlier != later]
    return sum(earlier != later for earlier, later in pairwise(signs))


@given(views(), MODELS, OBJECTIVES, st.floats(1, 10))
def test_constant_load_does_not_make_the_count_go_up_and_down(view, model, objective, every_s):
    """The same calls wait and run at every look; requested workers do not connect."""
    scaler = PoolScaler(objective)
    counts = [view.wanted]
    for _ in range(30):
        decision = scaler.decide(view, model)
        counts.append(max(decision.workers, view.busy))
        view = applied(view, counts[-1])
        view = replace(view, now=view.now + every_s, submitted=view.submitted)
    assert turns(counts) <= 1, counts


@given(MODELS, OBJECTIVES, st.integers(1, 40), st.floats(0.1, 600), st.booleans())
def test_nothing_is_wanted_for_nothing(model, objective, most, startup_s, graph):
    view = PoolView(now=5.0, maximum=most, startup_s=startup_s, graph=graph)
    assert PoolScaler(objective).decide(view, model).workers == 0


@given(BUSY, MODELS, OBJECTIVES, st.integers(1, 300), st.sampled_from(KINDS))
def test_a_call_that_can_run_gets_a_worker(view, model, objective, count, kind):
    view = replace(view, queued={kind: count})
    assert PoolScaler(objective).decide(view, model).workers >= (view.maximum != 0)


@given(views(), MODELS, OBJECTIVES)
def test_equal_pools_get_equal_decisions(view: PoolView, model, objective) -> None:
    assert PoolScaler(objective).decide(view, model) == PoolScaler(objective).decide(view, model)


@given(views(), st.floats(0.01, 300), OBJECTIVES)
def test_the_same_load_right_after_a_decision_changes_nothing(view: PoolView, mean_s, objective):
    scaler, model = PoolScaler(objective), informed(mean_s)
    decision = scaler.decide(view, model)
    if view.maximum is None or view.busy <= view.maximum:  # else one leaves as its calls end
        again = scaler.decide(applied(view, decision.workers), model)
        assert again.workers == decision.workers
