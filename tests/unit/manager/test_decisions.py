"""What the reconciler decides, without any process."""

from scalable.manager.launcher import Observation, UnitState
from scalable.manager.units import (
    LOST_WORKER_GRACE_S,
    Phase,
    Unit,
    WorkerView,
    backoff_s,
    choose_victims,
    decide,
    in_crash_loop,
    refresh,
)

RUNNING = Observation(UnitState.RUNNING)


def unit(name, *, phase=Phase.RUNNING, workers=None, connected_at=1.0, **fields):
    names = workers or (name,)
    return Unit(name, "a", names, 0.0, phase=phase, connected_at=connected_at, **fields)


def decided(wanted, units, observed=None, workers=None, now=10.0):
    units = {u.name: u for u in units}
    observed = dict.fromkeys(units, RUNNING) if observed is None else observed
    return decide(wanted, units, observed, workers or {}, now=now, start_timeout=60)


def test_a_unit_that_its_place_does_not_know_is_lost():
    assert decided({"x": {}}, [unit("x")], {}).lost[0].name == "x"


def test_a_pending_unit_is_waited_for_without_end():
    waiting = unit("x", phase=Phase.LAUNCHING, connected_at=None, missing_since=0.0)
    pending = {"x": Observation(UnitState.PENDING, "in the queue")}
    assert not decided({"x": {}}, [waiting], pending, now=1e6).lost


def test_a_running_unit_must_connect_in_time():
    starting = unit("x", phase=Phase.LAUNCHING, connected_at=None, missing_since=0.0)
    assert not decided({"x": {}}, [starting], now=1e6).lost  # it waited in a queue until now
    starting.running_since = 100.0
    assert not decided({"x": {}}, [starting], now=159).lost
    assert "did not connect" in decided({"x": {}}, [starting], now=161).lost[0].reason


def test_a_machine_has_the_time_to_boot_that_its_place_tells():
    booting = unit("x", phase=Phase.LAUNCHING, connected_at=None, missing_since=0.0)
    booting.running_since = 100.0
    seen = {"x": Observation(UnitState.RUNNING, starts_within_s=600.0)}
    assert not decided({"x": {}}, [booting], seen, now=699).lost
    assert "within 600 s" in decided({"x": {}}, [booting], seen, now=701).lost[0].reason


def test_the_reason_of_an_end_is_waited_for_if_the_place_may_know_it():
    gone = unit("x", missing_since=100.0)
    old = {"x": Observation(UnitState.RUNNING, at=90.0)}
    assert not decided({"x": {}}, [gone], old, now=130).lost
    assert decided({"x": {}}, [gone], old, now=170).lost
    fresh = {"x": Observation(UnitState.RUNNING, at=101.0)}
    assert decided({"x": {}}, [gone], fresh, now=130).lost
    ended = {"x": Observation(UnitState.ENDED, "it was cancelled", from_outside=True)}
    assert decided({"x": {}}, [gone], ended, now=102).lost[0].from_outside


def test_a_unit_whose_walltime_ended_before_it_connected_has_failed_to_start():
    over = {"x": Observation(UnitState.ENDED, "TIMEOUT", 0.0, from_outside=True)}
    late = unit("x", phase=Phase.LAUNCHING, connected_at=None, missing_since=0.0)
    assert not decided({"x": {}}, [late], over).lost[0].from_outside
    assert decided({"x": {}}, [unit("x")], over).lost[0].from_outside


def test_a_worker_that_the_scheduler_dismissed_is_no_crash():
    gone = unit("x", addresses=frozenset({"tcp://1"}), missing_since=1.0)
    ended = {"x": Observation(UnitState.ENDED, "exit code 0")}
    dismissed = WorkerView(dismissed_at="tcp://1")
    refresh([gone], {"x": WorkerView(dismissed_at="tcp://0"), "y": dismissed}, 7.0)
    assert not decided({"x": {}}, [gone], ended).lost[0].from_outside
    refresh([gone], {"x": dismissed}, 8.0)
    assert decided({"x": {}}, [gone], ended).lost[0].from_outside
    assert decided({"x": {}}, [gone], now=20).lost[0].from_outside  # its process lingers


def test_a_worker_that_left_has_a_while_to_come_back():
    gone = unit("x", missing_since=10.0)
    assert not decided({"x": {}}, [gone], now=10 + LOST_WORKER_GRACE_S - 0.1).lost
    assert decided({"x": {}}, [gone], now=10 + LOST_WORKER_GRACE_S + 0.1).lost


def test_an_unwanted_worker_that_is_connected_is_drained_whatever_its_place_says():
    ended = {"x": Observation(UnitState.ENDED, "it is not in the queue")}
    decision = decided({}, [unit("x")], ended, {"x": WorkerView("tcp://1")})
    assert (decision.drain, decision.stop) == ({"x": None}, [])


def test_the_scheduler_is_asked_about_a_unit_that_is_wanted_again_whatever_its_place_says():
    draining = unit("x", phase=Phase.DRAINING, missing_since=9.0)
    for observed in ({}, {"x": Observation(UnitState.RUNNING)}):
        decision = decided({"x": {}}, [draining], observed=observed)
        assert (decision.resume, decision.lost) == (["x"], [])


def test_refresh_connects_a_group_only_when_it_is_complete():
    group = unit("x", workers=("x-0", "x-1"), phase=Phase.LAUNCHING, connected_at=None)
    assert refresh([group], {"x-0": WorkerView("tcp://1")}, 5.0) == []
    assert group.missing_since == 5.0
    views = {"x-0": WorkerView("tcp://1"), "x-1": WorkerView("tcp://2")}
    assert refresh([group], views, 6.0) == [group]
    assert (group.phase, group.missing_since) == (Phase.RUNNING, None)


def test_a_worker_under_a_new_address_counts_as_a_start():
    restarted = unit("x", addresses=frozenset({"tcp://1"}), starts=(1.0,))
    refresh([restarted], {"x": WorkerView("tcp://2")}, 7.0)
    assert restarted.starts == (1.0, 7.0)
    refresh([restarted], {"x": WorkerView("tcp://2")}, 8.0)
    assert restarted.starts == (1.0, 7.0)


def test_a_restart_that_a_client_asked_for_counts_as_none():
    restarted = unit("x", addresses=frozenset({"tcp://1"}), starts=(1.0,))
    refresh([restarted], {"x": WorkerView("tcp://2", dismissed_at="tcp://1")}, 7.0)
    assert (restarted.starts, restarted.dismissed) == ((1.0,), True)
    refresh([restarted], {"x": WorkerView("tcp://2", dismissed_at="tcp://1")}, 8.0)
    assert not restarted.dismissed


def test_restart_after_a_loss_with_tasks_counts_as_none():
    restarted = unit("x", addresses=frozenset({"tcp://1"}), starts=(1.0,))
    refresh([restarted], {"x": WorkerView("tcp://2", lost_at_work="tcp://1")}, 7.0)
    assert (restarted.starts, restarted.at_work) == ((1.0,), True)
    refresh(
        [restarted], {"x": WorkerView(lost_at_work="tcp://1")}, 8.0
    )  # lost again, this time without a task
    assert not restarted.at_work


def test_worker_lost_with_its_first_task_has_started():
    unseen = unit("x", addresses=frozenset(), phase=Phase.LAUNCHING, connected_at=None)
    refresh([unseen], {}, 7.0)
    assert not unseen.at_work
    refresh([unseen], {"x": WorkerView(lost_at_work="tcp://1")}, 8.0)
    assert unseen.at_work


def test_victims_are_unlaunched_then_unconnected_then_idle_then_least_loaded():
    units = {name: unit(name) for name in ("light", "idle", "full", "heavy", "starting")}
    workers = {
        "light": WorkerView("1", processing=1, occupancy=1.0),
        "heavy": WorkerView("2", processing=5, occupancy=9.0),
        "idle": WorkerView("3"),
        "full": WorkerView("4", nbytes=100),
    }
    names = ["heavy", "full", "light", "idle", "starting", "unlaunched"]
    assert choose_victims(names, 6, units, workers) == [
        "unlaunched", "starting", "idle", "full", "light", "heavy",
    ]  # fmt: skip
    assert choose_victims(names, -2, units, workers) == []


def test_five_starts_within_a_minute_are_a_crash_loop():
    assert in_crash_loop([0, 10, 20, 30, 40], now=50)
    assert not in_crash_loop([0, 10, 20, 30], now=50)
    assert not in_crash_loop([0, 30, 60, 90, 120], now=121)


def test_backoff_grows_and_is_bounded():
    assert [backoff_s(n) for n in (0, 1, 2, 3, 20)] == [0.0, 0.5, 1.0, 2.0, 15.0]


def test_a_worker_that_restarts_itself_again_and_again_is_lost():
    restarting = unit("x", missing_since=9.0, starts=(1.0, 2.0, 3.0, 4.0, 5.0))
    (loss,) = decided({"x": {}}, [restarting]).lost
    assert loss.reason == "its worker kept exiting"


def test_a_unit_whose_machine_is_taken_back_leaves_with_its_reason_once():
    view = WorkerView("tcp://w", processing=1, drain="draining", leaves="its machine is taken back")
    decision = decided({"x": {}}, [unit("x")], workers={"x": view})
    assert decision.leave == {"x": "its machine is taken back"}
    assert decision.taken_back == ["x"]
    drained = WorkerView("tcp://w", drain="draining")
    assert decided({"x": {}}, [unit("x")], workers={"x": drained}).taken_back == []
    # Its successor is wanted, and it is not: nothing counts it a second time.
    assert decided({"y": {}}, [unit("x")], workers={"x": view}).taken_back == []
