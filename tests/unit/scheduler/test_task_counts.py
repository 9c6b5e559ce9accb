"""Numbers of calls by task name and state."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalable.model.cache_outcomes import CacheOutcome, OutcomeKind
from scalable.protocol.measured import (
    BUNDLE,
    BUNDLE_ANNOTATION,
    TASK_ANNOTATION,
    addition,
    cache_addition,
)
from scalable.scheduler import overviews, task_log
from scalable.scheduler.overviews import NameCounts
from scalable.scheduler.task_log import TaskLog
from unit.scheduler.test_task_log import FakeScheduler


@pytest.fixture
def scheduler():
    return FakeScheduler()


def told(counts):
    return {(row.name, row.tag): (row.unfinished, *row.phases[2:5]) for row in counts}


def computed(began, ended):
    return {
        "startstops": [{"action": "compute", "start": began, "stop": ended}],
        "worker": "tcp://a",
    }


def test_a_bundle_counts_as_its_calls(scheduler):
    counts = NameCounts(scheduler)
    scheduler.add("a", {BUNDLE_ANNOTATION: {"calls": 10, "rows": False}, TASK_ANNOTATION: "fit"})
    scheduler.send("a")
    scheduler.move("a", "waiting", "processing")
    assert told(counts) == {("fit", None): (10, 0, 0, 0)}
    values = {"calls": 7, "failed": 2, "total_s": 3.5, "failures": ()}
    bundle = addition(BUNDLE, values)
    scheduler.move("a", "memory", startstops=[bundle], worker="tcp://a")
    assert told(counts) == {("fit", None): (0, 5, 2, 0)}  # three calls were given back
    assert [row.sums.mean("duration_s") for row in counts] == [0.5]


def test_found_calls_of_a_bundle_did_not_run(scheduler):
    counts = NameCounts(scheduler)
    scheduler.add("a", {BUNDLE_ANNOTATION: {"calls": 6, "rows": False}, TASK_ANNOTATION: "fit"})
    scheduler.send("a")
    values = {"calls": 2, "failed": 1, "found": 4, "total_s": 3.0, "failures": ()}
    outcome = CacheOutcome(OutcomeKind.FOUND, 4, 8.0)
    parts = [addition(BUNDLE, values), cache_addition([outcome])]
    scheduler.move("a", "waiting", "processing", "memory", startstops=parts, worker="tcp://a")
    (row,) = counts
    assert (row.phases, row.sums.mean("duration_s")) == ([0, 0, 1, 1, 0, 4], 1.5)


def test_many_names_are_summed_up_by_their_beginning(scheduler, monkeypatch):
    monkeypatch.setattr(overviews, "KEPT_NAMES", 10)
    counts = NameCounts(scheduler)
    for number in range(300):
        scheduler.add(f"k{number}", {TASK_ANNOTATION: f"{'xyz'[number % 3]}-{number}"})
        scheduler.send(f"k{number}")
    rows = list(counts)
    assert len(rows) == 13
    assert sum(row.unfinished for row in rows) == 300
    assert {row.name for row in rows if row.names > 1} == {"x-*", "y-*", "z-*"}


def test_a_scheduler_that_knows_calls_already_is_counted(scheduler):
    task = scheduler.add("a")
    task.state = "processing"
    assert told(NameCounts(scheduler)) == {("run", None): (1, 0, 0, 0)}


def test_a_restart_cancels_the_unfinished_calls(scheduler):
    counts = NameCounts(scheduler)
    scheduler.add("a")
    scheduler.send("a")
    TaskLog.of(scheduler).restart(scheduler)
    assert told(counts) == {("run", None): (0, 0, 0, 1)}


FOLLOWING = {
    "released": ["waiting", "forgotten"],
    "waiting": ["processing", "queued", "no-worker", "released"],
    "queued": ["processing", "released"],
    "no-worker": ["processing", "released"],
    "processing": ["memory", "erred", "released"],
    "memory": ["released"],
    "erred": ["released"],
}


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), max_size=120))
def test_no_call_is_lost_or_counted_twice(moves):
    scheduler = FakeScheduler()
    counts = NameCounts(scheduler)
    known, forgotten = set(), 0
    for key, choice in moves:
        if key not in scheduler.tasks:
            scheduler.add(key)
            scheduler.send(key)
            known.add(key)
            continue
        following = FOLLOWING[scheduler.tasks[key].state]
        state = following[choice % len(following)]
        scheduler.move(key, state)
        forgotten += state == "forgotten"
    rows = list(counts)
    assert sum(sum(row.phases) for row in rows) == len(scheduler.tasks) + forgotten
    assert all(count >= 0 for row in rows for count in row.phases)


def test_queue_times_are_counted_from_when_a_call_waits_for_a_worker_only(scheduler, monkeypatch):
    counts = NameCounts(scheduler)
    clock = {"now": 100.0}
    monkeypatch.setattr(task_log, "time", SimpleNamespace(time=lambda: clock["now"]))
    scheduler.add("a")
    scheduler.add("b", {BUNDLE_ANNOTATION: {"calls": 4, "rows": False}})
    scheduler.send("a", "b")
    clock["now"] = 107.0  # until then it waited for other tasks
    scheduler.move("a", "waiting", "processing", "memory", **computed(109.0, 112.0))
    bundle = {"calls": 4, "failed": 0, "total_s": 4.0, "quantiles_s": [], "rows": []}
    end = computed(110.0, 114.0)
    end["startstops"].append(addition(BUNDLE, bundle))
    scheduler.move("b", "waiting", "processing", "memory", **end)
    (row,) = counts
    assert row.sums["queued_s"] == (5, 2.0 + 4 * 3.0)
