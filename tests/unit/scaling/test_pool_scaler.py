"""The policy of adaptive pools, on cases small enough to decide by hand."""

from __future__ import annotations

import pytest

from scalable.scaling.policy import PoolScaler
from scalable.scaling.pool_policy import PoolView
from scalable.scaling.task_model import Expectation, Kind, Sample, TaskModel
from simulation.simulator import simulate
from simulation.workloads import Call, Startup, Terms, Workload

RUN = Kind("run", "simulate")


def model(duration_s: float = 30.0) -> TaskModel:
    return TaskModel({("run", "simulate"): Expectation(duration_s)})


def decide(scaler: PoolScaler, view: PoolView, duration_s: float = 30.0) -> int:
    return scaler.decide(view, model(duration_s)).workers


def test_never_more_workers_than_calls() -> None:
    view = PoolView(0.0, queued={RUN: 7}, submitted=7, graph=True)
    assert decide(PoolScaler(), view) == 7


def test_calls_of_unknown_length_get_workers_that_find_it_out_first() -> None:
    """Sixteen workers cost 16 minutes of start-up, which short calls would not be worth."""
    view = PoolView(
        0.0, maximum=16, queued={RUN: 16}, submitted=16, graph=True,
        startup_s=60.0, billed_startup_s=60.0,
    )  # fmt: skip
    decision = PoolScaler().decide(view, TaskModel())
    assert 1 <= decision.workers < decide(PoolScaler(), view, duration_s=600.0) == 16
    assert "durations are not known" in decision.reason
    assert decide(PoolScaler(), view, duration_s=0.1) == 1


def test_calls_that_still_run_tell_that_the_queued_ones_are_long() -> None:
    def after(seconds: float) -> int:
        view = PoolView(
            seconds, maximum=40, wanted=2, busy=2, running={RUN: [seconds] * 2}, queued={RUN: 100},
            submitted=102, graph=True, startup_s=60.0, billed_startup_s=60.0,
        )  # fmt: skip
        return PoolScaler().decide(view, TaskModel()).workers

    counts = [after(seconds) for seconds in (0.0, 30.0, 300.0, 3000.0)]
    assert counts == sorted(counts)
    assert counts[-1] == 40


def test_blocked_calls_behind_unknown_ones_count() -> None:
    """A first task of unknown length, and a hundred behind it: ten minutes of start-up are used."""
    calls = (Call(Kind("run", "first"), 5.0), *[Call(RUN, 60.0, after=(0,))] * 100)
    work = Workload("behind", calls, {"run": Terms(0, 16)})
    startup = Startup(600.0, 30.0)
    outcome = simulate(work, lambda _: PoolScaler(), startup, TaskModel(), seed=1)
    assert max(count for _, count in outcome.workers["run"]) > 8
    assert outcome.makespan_s < 2000


def test_slots_share_a_worker() -> None:
    view = PoolView(0.0, slots=4, queued={RUN: 8}, submitted=8, graph=True)
    assert decide(PoolScaler(), view) == 2


def test_a_worker_that_would_come_too_late_is_not_asked_for() -> None:
    running, queued = {RUN: [10.0] * 10}, {RUN: 5}
    late = PoolView(
        0.0, wanted=10, busy=10, queued=queued, running=running, submitted=15, graph=True,
        startup_s=600.0, billed_startup_s=30.0,
    )  # fmt: skip
    soon = PoolView(
        0.0, wanted=10, busy=10, queued=queued, running=running, submitted=15, graph=True
    )
    assert decide(PoolScaler(), late) == 10
    assert decide(PoolScaler(), soon) > 10


def test_idle_workers_of_a_graph_that_is_done_go_at_once() -> None:
    view = PoolView(5.0, wanted=4, busy=1, idle=3, running={RUN: [1.0]}, submitted=9, graph=True)
    assert decide(PoolScaler(), view) == 1


def test_idle_workers_wait_for_calls_that_are_about_to_be_ready() -> None:
    view = PoolView(
        5.0, wanted=4, busy=1, idle=3, running={RUN: [1.0]}, coming=[(8.0, RUN, 2)], submitted=9,
        graph=True, startup_s=60.0, billed_startup_s=60.0,
    )  # fmt: skip
    assert decide(PoolScaler(), view) == 3


def test_workers_are_asked_for_before_their_calls_are_ready() -> None:
    soon = PoolView(0.0, coming=[(50.0, RUN, 4)], graph=True, startup_s=60.0)
    far = PoolView(0.0, coming=[(500.0, RUN, 4)], graph=True, startup_s=60.0)
    assert decide(PoolScaler(), soon) == 4
    assert decide(PoolScaler(), far) == 0


def test_a_local_pool_is_back_at_its_minimum_within_a_minute() -> None:
    scaler, idle = PoolScaler(), 3
    for now in range(0, 62, 2):
        view = PoolView(float(now), 1, 8, wanted=idle, idle=idle, submitted=20, startup_s=2.0)
        idle = decide(scaler, view)
        if now >= 58:
            assert idle == 1


def test_workers_on_their_way_are_cancelled_by_two_looks_only() -> None:
    scaler = PoolScaler()

    def view(now: float) -> PoolView:
        return PoolView(now, wanted=5, arriving=[now] * 5, graph=True, startup_s=600.0)

    assert decide(scaler, view(1.0)) == 5
    assert decide(scaler, view(1.0)) == 5
    assert decide(scaler, view(6.0)) == 0


def test_workers_of_a_stream_are_not_cancelled_while_waiting_costs_nothing() -> None:
    """A queue of 600 s of which the last 30 s are paid for: no task is left for five workers."""
    scaler = PoolScaler()

    def view(now: float) -> PoolView:
        return PoolView(
            now, wanted=5, arriving=[now] * 5, submitted=5, startup_s=600.0, billed_startup_s=30.0
        )

    assert [decide(scaler, view(float(now))) for now in range(5, 270, 5)] == [5] * 53
    assert [decide(scaler, view(now)) for now in (280.0, 285.0)] == [5, 0]


def test_of_idle_workers_of_a_stream_those_leave_that_idled_longest() -> None:
    """One of ten ends its call each 2 s: the first to idle do not wait for the others."""
    scaler, workers = PoolScaler(), 10
    for now in range(0, 16, 2):
        busy = 10 - now // 2
        view = PoolView(
            float(now), wanted=workers, busy=busy, idle=workers - busy, submitted=10,
            running={RUN: [20.0 + now] * busy}, startup_s=60.0, billed_startup_s=60.0,
        )  # fmt: skip
        workers = decide(scaler, view)
        assert workers - busy == min(2, now // 2)


def test_the_last_worker_of_a_stream_leaves_at_once_where_waiting_never_paid() -> None:
    """Calls of 10 s, one each 90 s; another worker is there within a second."""
    scaler, left = PoolScaler(), None
    for now in range(990):
        calls, since = divmod(now, 90)
        if since < 10:
            view = PoolView(
                float(now), wanted=1, busy=1, running={RUN: [float(since)]}, submitted=calls + 1,
                billed_startup_s=1.0,
            )  # fmt: skip
            left = None
        else:
            idle = 0 if left is not None else 1
            view = PoolView(
                float(now), wanted=idle, idle=idle, submitted=calls + 1, billed_startup_s=1.0
            )
        if decide(scaler, view, 10.0) == 0 and left is None:
            left = since - 10
    assert left == 0


def test_long_ago_does_not_make_a_queued_call_negligible() -> None:
    """A call behind another one of 30 s gets a worker of its own, however much was done before."""
    scaler = PoolScaler()
    for now in range(0, 20000, 50):
        view = PoolView(
            float(now), wanted=1, busy=1, running={RUN: [15.0]}, submitted=now // 50 + 1,
            billed_startup_s=1.0,
        )  # fmt: skip
        decide(scaler, view)
    view = PoolView(
        20000.0, wanted=1, busy=1, running={RUN: [5.0]}, queued={RUN: 1}, submitted=402,
        billed_startup_s=1.0,
    )  # fmt: skip
    assert decide(scaler, view) == 2


def test_workers_are_asked_for_calls_that_come_while_they_start() -> None:
    """Three calls in 10 s, of 10 s each, and two workers: some 60 will queue in 600 s, not three.

    Five could run what comes, but not what will wait for them by then.
    """
    scaler, count = PoolScaler(), 0
    for now in range(0, 300, 5):
        view = PoolView(
            float(now), wanted=2, busy=2, running={RUN: [5.0] * 2}, queued={RUN: 3},
            submitted=now * 3 // 10, startup_s=600.0, billed_startup_s=30.0,
        )  # fmt: skip
        count = decide(scaler, view, 10.0)
    assert 5 < count <= 2 + 60


def test_idle_workers_of_a_graph_leave_where_waiting_costs_more_than_their_starts() -> None:
    """Ten idle for 70 s would cost more than ten starts of 60 s, and than what the graph loses."""
    view = PoolView(
        5.0, wanted=11, busy=1, idle=10, running={RUN: [1.0]}, coming=[(70.0, RUN, 10)],
        submitted=9, graph=True, startup_s=60.0, billed_startup_s=60.0,
    )  # fmt: skip
    assert decide(PoolScaler(), view) == 1


def test_long_running_calls_tell_that_nothing_is_short() -> None:
    """Forty tasks that have run for 100 s, none ended: the assumed 10 s are not believed."""
    view = PoolView(
        100.0, wanted=40, busy=40, queued={RUN: 40}, running={RUN: [100.0] * 40}, submitted=80,
        startup_s=5.0, billed_startup_s=5.0,
    )  # fmt: skip
    assert PoolScaler().decide(view, TaskModel(unknown_s=10.0)).workers > 40


def test_a_steady_stream_keeps_workers_where_starting_takes_long() -> None:
    scaler = PoolScaler()
    count = 0
    for now in range(0, 400, 5):
        view = PoolView(
            float(now), wanted=12, busy=10, idle=2, running={RUN: [15.0] * 10},
            submitted=now // 3, startup_s=600.0, billed_startup_s=30.0,
        )  # fmt: skip
        count = decide(scaler, view)
    assert count > 10


@pytest.mark.parametrize(
    "wrong", [{"objective": "speed"}, {"hysteresis": -0.1}, {"longest_idle_s": -1.0}]
)
def test_invalid_settings_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=str(next(iter(wrong.values())))):
        PoolScaler(**wrong)  # type: ignore[arg-type]


def test_starting_workers_of_a_graph_are_cancelled_only_for_a_clear_gain():
    unknown = {Kind("run", "new"): 40}
    terms = {"maximum": 200, "graph": True, "startup_s": 300.0, "billed_startup_s": 100.0}

    def left_of(starting, queued, model):
        """Return the workers that remain of starting ones after two decisions."""
        scaler = PoolScaler()
        for now in (100.0, 105.0):
            view = PoolView(now=now, queued=queued, arriving=[now] * starting, **terms)
            count = scaler.decide(view, model).workers
        return count

    best = PoolScaler().decide(PoolView(now=0.0, queued=unknown, **terms), TaskModel()).workers
    assert 4 < best < 40
    assert left_of(2 * best, unknown, TaskModel()) == 2 * best
    assert left_of(5 * best, unknown, TaskModel()) < 2 * best
    assert left_of(2 * best, {Kind("run", "new"): 1}, TaskModel()) < best
    # Where lengths are known, a small gain is enough.
    known = TaskModel()
    for _ in range(200):
        known.observe(Sample(Kind("run", "old"), 20.0))
    queued = {Kind("run", "old"): 40}
    best = PoolScaler().decide(PoolView(now=0.0, queued=queued, **terms), known).workers
    assert left_of(best + 5, queued, known) < best + 5


def test_a_few_workers_begin_where_nothing_is_known_and_starts_are_billed():
    queued = {Kind("run", "new"): 1000}

    def first(model, billed_s, maximum=64):
        view = PoolView(
            now=0.0,
            queued=queued,
            maximum=maximum,
            graph=True,
            startup_s=60.0,
            billed_startup_s=billed_s,
        )
        return PoolScaler().decide(view, model).workers

    assert first(TaskModel(), 60.0) == 8
    assert first(TaskModel(), 60.0, maximum=10) == 4
    assert first(TaskModel(), 0.0) == 64  # a superfluous start costs nothing
    stated = TaskModel({("run", "new"): Expectation(30.0)})
    assert first(stated, 60.0) == 64
    running = PoolView(
        now=130.0,
        queued=queued,
        running={Kind("run", "new"): [60.0] * 8},
        busy=8,
        maximum=64,
        graph=True,
        startup_s=60.0,
        billed_startup_s=60.0,
    )
    assert PoolScaler().decide(running, TaskModel()).workers == 64  # these are no short calls
