"""The latest events of a cluster."""

from itertools import pairwise

from scalable.scheduler import overviews
from scalable.scheduler.overviews import FAILURES_AT_ONCE, KEPT, SAMPLED_POOLS_AT_ONCE, RecentEvents


def test_a_reader_gets_the_events_after_its_number():
    events = RecentEvents()
    events.add("decisions", "one")
    events.add("failures", "two")
    events.add("decisions", "three")
    first = events.since(0)
    assert (first.decisions, first.failures, first.seq) == (["one", "three"], ["two"], 3)
    events.add("decisions", "four")
    later = events.since(first.seq)
    assert (later.decisions, later.failures, later.missed) == (["four"], [], False)


def test_a_reader_of_an_earlier_scheduler_gets_everything():
    events = RecentEvents()
    events.add("decisions", "one")
    assert events.since(900).decisions == ["one"]


def test_only_the_asked_kinds_are_given():
    events = RecentEvents()
    events.add("decisions", "one")
    events.add("failures", "two")
    found = events.since(0, frozenset(["failures"]))
    assert (found.decisions, found.failures) == ((), ["two"])


def test_a_reader_is_told_when_events_are_gone():
    events = RecentEvents()
    for number in range(KEPT["decisions"] + 1):
        events.add("decisions", number)
    assert events.since(0).missed
    assert len(events.since(0).decisions) == KEPT["decisions"]
    assert not events.since(1).missed


def test_one_answer_holds_the_newest_failures_and_says_that_there_were_more():
    events = RecentEvents()
    for number in range(FAILURES_AT_ONCE + 3):
        events.add("failures", number)
    assert events.since(0).failures == list(range(3, FAILURES_AT_ONCE + 3))
    assert events.since(0).missed
    assert not events.since(3).missed


def test_samples_of_many_pools_are_thinned_out_in_one_answer_up_to_the_last():
    events = RecentEvents()
    pools = {f"pool-{number}": [1, 1, 1, 1, 0] for number in range(50)}
    for second in range(500):
        events.sample({"at": float(second), "pools": pools})
    times = [sample["at"] for sample in events.since(0).samples]
    assert len(times) * len(pools) <= SAMPLED_POOLS_AT_ONCE
    assert times[-1] == 499.0
    assert len({later - before for before, later in pairwise(times)}) == 1
    assert len(events.since(497).samples) == 3


def test_samples_are_thinned_out_instead_of_forgotten(monkeypatch):
    monkeypatch.setattr(overviews, "KEPT_SAMPLES", 100)
    events = RecentEvents()
    for second in range(10_000):
        events.sample({"at": float(second)})
    times = [sample["at"] for sample in events.since(0).samples]
    assert 50 <= len(times) <= 101
    assert times[0] == 0.0
    assert times[-1] > 9_700
    steps = {later - before for before, later in pairwise(times)}
    assert max(steps) <= 2 * min(steps)
