"""Decisions of the pool policy hold on any pool."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from pool_views import applied, informed, views

from scalable.scaling.policy import PoolScaler
from scalable.scaling.pool_policy import PoolView


@given(views(), st.floats(0.01, 300), st.sampled_from(["cost", "balance", "time"]))
def test_bounds_hold_busy_workers_stay_and_the_same_load_changes_nothing(
    view: PoolView, mean_s: float, objective: str
) -> None:
    scaler = PoolScaler(objective)  # type: ignore[arg-type]
    model = informed(mean_s)
    decision = scaler.decide(view, model)
    assert decision.workers >= view.minimum
    most = view.busy if view.maximum is None else view.maximum
    assert view.maximum is None or decision.workers <= most
    assert decision.workers >= min(view.busy, most)
    if view.busy > most:
        return  # leaves as its calls end
    again = scaler.decide(applied(view, decision.workers), model)
    assert again.workers == decision.workers
