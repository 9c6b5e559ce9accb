"""Numbers of calls by task name and state."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalable.model.remembered import Kind, RememberedOutcome
from scalable.protocol.measured import (
    BUNDLE,
    BUNDLE_ANNOTATION,
    TASK_ANNOTATION,
    addition,
    remembered_addition,
)
from scalable.protocol.operations import KNOWN_ANNOTATION
from scalable.scheduler import ledger
from scalable.scheduler.ledger import Ledger
from scalable.scheduler.overview import call_counts
from scalable.scheduler.overview.call_counts import NameCounts
from scalable.scheduler.recorder import Recorder
from scalable.scheduler.remembered import take_found
from unit.scheduler.test_ledger import FakeScheduler


@pytest.fixture
def scheduler():
    return FakeScheduler()


def counting(scheduler):
    counts = NameCounts(scheduler)
    Ledger.of(scheduler).listen(counts)
    return counts


def told(counts):
    return {(row.name, row.tag): (row.unfinished, *row.ended[:3]) for row in counts}


def computed(began, ended):
    return {
        "startstops": [{"action": "compute", "start": began, "stop": ended}],
        "worker": "tcp://a",
    }


def test_calls_are_counted_by_name_tag_and_state(scheduler):
    counts = counting(scheduler)
    for key, tag in (("a", "small"), ("b", "small"), ("c", None)):
        scheduler.add(key, {TASK_ANNOTATION: "fit"}, {tag: 1} if tag else None)
    scheduler.send("a", "b", "c")
    scheduler.move("a", "waiting", "processing", "memory", **computed(1.0, 3.0))
    scheduler.move("b", "waiting", "processing", "erred", **computed(1.0, 2.0))
    assert told(counts) == {("fit", "small"): (0, 1, 1, 0), ("fit", None): (1, 0, 0, 0)}
    assert {row.tag: row.mean_s for row in counts} == {"small": 1.5, None: None}


def test_a_call_that_is_forgotten_before_its_end_counts_as_cancelled(scheduler):
    counts = counting(scheduler)
    scheduler.add("a")
    scheduler.send("a")
    scheduler.move("a", "waiting", "processing", "released", "forgotten")
    assert told(counts) == {("run", None): (0, 0, 0, 1)}


def test_a_call_that_runs_again_after_its_worker_was_lost_counts_once(scheduler):
    counts = counting(scheduler)
    scheduler.add("a")
    scheduler.send("a")
    scheduler.move("a", "waiting", "processing", "released", "waiting", "processing", "memory")
    assert told(counts) == {("run", None): (0, 1, 0, 0)}


def test_a_bundle_counts_as_its_calls(scheduler):
    counts = counting(scheduler)
    scheduler.add("a", {BUNDLE_ANNOTATION: {"calls": 10, "rows": False}, TASK_ANNOTATION: "fit"})
    scheduler.send("a")
    scheduler.move("a", "waiting", "processing")
    assert told(counts) == {("fit", None): (10, 0, 0, 0)}
    values = {"calls": 7, "failed": 2, "total_s": 3.5, "failures": ()}
    bundle = addition(BUNDLE, values)
    scheduler.move("a", "memory", startstops=[bundle], worker="tcp://a")
    assert told(counts) == {("fit", None): (0, 5, 2, 0)}  # three calls were given back
    assert [row.mean_s for row in counts] == [0.5]


def hit(seconds=0.001, saved_s=8.0):
    """Return the details of the end of a call whose result a worker found."""
    details = computed(1.0, 1.0 + seconds)
    outcome = RememberedOutcome(Kind.FOUND, saved_s=saved_s)
    details["startstops"].append(remembered_addition([outcome]))
    return details


def test_calls_whose_results_are_found_did_not_run(scheduler):
    counts, rows = counting(scheduler), Rows()
    recorder = Recorder(scheduler, rows, ["small"])
    Ledger.of(scheduler).listen(recorder)
    for key in ("a", "b"):
        scheduler.add(key, {TASK_ANNOTATION: "fit"}, {"small": 1})
    scheduler.add("known", {TASK_ANNOTATION: "fit", KNOWN_ANNOTATION: True}, {"small": 1})
    scheduler.send("a", "b", "known")
    scheduler.move("a", "waiting", "processing", "memory", **hit())
    scheduler.move("b", "waiting", "processing", "memory", **computed(1.0, 3.0))
    scheduler.move("known", "waiting", "processing", "memory", **computed(1.0, 1.1))
    take_found(Ledger.of(scheduler).hear, [["fit", "small", 10, 80.0]], client="one")
    (row,) = counts
    assert (row.unfinished, row.ended, row.mean_s) == (0, (1, 0, 0, 11), 2.0)
    totals = counts.remembered_calls.totals()
    assert (totals.found, totals.saved_s, totals.missed) == (11, 88.0, 0)
    recorder.flush()
    states = [(row["task_id"], row["state"]) for row in rows.tasks]
    assert ("a", "found") in states
    assert ("b", "succeeded") in states
    assert "known" not in {key for key, _ in states}
    assert [(r["task_id"], r["count"], r["saved_s"]) for r in rows.remembered] == [
        ("a", 1, 8.0), (None, 10, 80.0)
    ]  # fmt: skip


def test_found_calls_of_a_bundle_did_not_run(scheduler):
    counts = counting(scheduler)
    scheduler.add("a", {BUNDLE_ANNOTATION: {"calls": 6, "rows": False}, TASK_ANNOTATION: "fit"})
    scheduler.send("a")
    values = {"calls": 2, "failed": 1, "found": 4, "total_s": 3.0, "failures": ()}
    outcome = RememberedOutcome(Kind.FOUND, 4, 8.0)
    parts = [addition(BUNDLE, values), remembered_addition([outcome])]
    scheduler.move("a", "waiting", "processing", "memory", startstops=parts, worker="tcp://a")
    (row,) = counts
    assert (row.unfinished, row.ended, row.mean_s) == (0, (1, 1, 0, 4), 1.5)


class Rows:
    """The rows of a run, by stream."""

    def __init__(self):
        self.tasks, self.remembered = [], []

    def extend(self, stream, rows):
        getattr(self, stream).extend(json.loads(r) if isinstance(r, str) else r for r in rows)


def test_many_names_are_summed_up_by_their_beginning(scheduler, monkeypatch):
    monkeypatch.setattr(call_counts, "KEPT_NAMES", 10)
    counts = counting(scheduler)
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
    assert told(counting(scheduler)) == {("run", None): (1, 0, 0, 0)}


def test_a_restart_cancels_the_unfinished_calls(scheduler):
    counts = counting(scheduler)
    scheduler.add("a")
    scheduler.send("a")
    Ledger.of(scheduler).restart(scheduler)
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
    counts = counting(scheduler)
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


def test_row_of_a_call_is_known_until_it_is_forgotten(scheduler):
    counts = counting(scheduler)
    scheduler.add("a")
    scheduler.send("a")
    assert counts.row_of("a").name == "run"
    scheduler.move("a", "waiting", "released", "forgotten")
    assert counts.row_of("a") is None


def test_queue_times_are_counted_from_when_a_call_waits_for_a_worker_only(scheduler, monkeypatch):
    counts = counting(scheduler)
    clock = {"now": 100.0}
    monkeypatch.setattr(ledger.time, "time", lambda: clock["now"])
    scheduler.add("a")
    scheduler.add("b", {BUNDLE_ANNOTATION: {"calls": 4, "rows": False}})
    scheduler.send("a", "b")
    clock["now"] = 107.0  # until then it waited for other calls
    scheduler.move("a", "waiting", "processing", "memory", **computed(109.0, 112.0))
    bundle = {
        "calls": 4,
        "failed": 0,
        "total_s": 4.0,
        "quantiles_s": [],
        "rows": [],
    }
    end = computed(110.0, 114.0)
    end["startstops"].append(addition(BUNDLE, bundle))
    scheduler.move("b", "waiting", "processing", "memory", **end)
    (row,) = counts
    assert (row.queued, row.queued_s) == (5, 2.0 + 4 * 3.0)
