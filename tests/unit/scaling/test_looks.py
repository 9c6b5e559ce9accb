"""Moments at which the worker count of a pool is decided."""

from dataclasses import replace

from scalable.scaling.policy import HOLDS_SHARE, PoolScaler, Unchanged
from scalable.scaling.pool_policy import PoolDecision, PoolView
from scalable.scaling.task_model import Kind, TaskModel

A = Kind("run", "a")
VIEW = PoolView(now=100.0, maximum=8, busy=2, running={A: [5.0, 6.0]}, queued={A: 3}, graph=True)


def after(view: PoolView, seconds: float) -> PoolView:
    running = {kind: [e + seconds for e in elapsed] for kind, elapsed in view.running.items()}
    return replace(view, now=view.now + seconds, running=running)


def test_a_decision_holds_for_a_share_of_the_quiet_time():
    last = Unchanged()
    assert last.decision(VIEW) is None
    last.keep(VIEW, PoolDecision(2, "enough", 40.0))
    assert last.decision(after(VIEW, 0.001)) is None  # something has just happened
    quiet = after(VIEW, 100.0)
    last.keep(quiet, PoolDecision(2, "enough", 40.0))
    held = last.decision(after(quiet, 90.0 * HOLDS_SHARE))
    assert held == PoolDecision(2, "enough", 40.0 - 90.0 * HOLDS_SHARE)
    assert last.decision(after(quiet, 110.0 * HOLDS_SHARE)) is None


def test_a_decision_ends_with_any_event():
    last = Unchanged()
    last.keep(VIEW, PoolDecision(2, "enough"))
    quiet = after(VIEW, 100.0)
    last.keep(quiet, PoolDecision(2, "enough"))
    later = after(quiet, 1.0)
    assert last.decision(later) is not None
    for event in (
        {"queued": {A: 2}},
        {"running": {A: [6.0]}},
        {"idle": 1},
        {"arriving": [1.0]},
        {"coming": [(1.0, A, 1)]},
        {"maximum": 3},
        {"minimum": 1},
        {"submitted": 1},
    ):
        assert last.decision(replace(later, **event)) is None, event


def test_a_decision_that_changes_the_count_is_not_repeated():
    last = Unchanged()
    last.keep(VIEW, PoolDecision(4, "more"))
    last.keep(after(VIEW, 100.0), PoolDecision(4, "more"))
    assert last.decision(after(VIEW, 101.0)) is None


def test_a_policy_computes_seldom_in_a_quiet_hour(monkeypatch):
    scaler, computed = PoolScaler(), []
    decided = scaler._decided
    monkeypatch.setattr(
        scaler, "_decided", lambda view, model: computed.append(view.now) or decided(view, model)
    )
    model = TaskModel()
    view = PoolView(now=0.0, maximum=2, busy=2, running={A: [0.0, 0.0]}, graph=True)
    for second in range(3600):
        assert scaler.decide(after(view, float(second)), model).workers == 2
    assert 20 < len(computed) < 400
