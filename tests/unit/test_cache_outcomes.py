"""Outcomes of remembered calls: what they say, their totals, and how clients tell of hits."""

import json
from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from scalable.client.caching import OTHERS, TOLD_NAMES, FoundCalls
from scalable.model.cache_outcomes import (
    OTHER_REASONS,
    TOLD_REASONS,
    CacheOutcome,
    CacheTally,
    OutcomeKind,
    joined,
)
from scalable.model.overview import Overview
from scalable.protocol.measured import USAGE, addition, cache_addition, measured
from scalable.protocol.operations import WIRE, WIRE_VERSION
from scalable.runs.summary import cached_in
from scalable.views.cluster_text import cache_in_detail, cache_in_words

FOUND = CacheOutcome(OutcomeKind.FOUND, saved_s=2.0)
MISSED = CacheOutcome(OutcomeKind.MISSED, reason="argument x changed", changed=("argument:x",))
OUTCOMES = st.builds(
    CacheOutcome,
    st.sampled_from(OutcomeKind),
    st.integers(1, 5),
    st.integers(0, 100).map(float),
    st.sampled_from(["", "argument x changed", "the function f changed"]),
)


def tallied(outcomes):
    tally = CacheTally()
    for task, outcome in outcomes:
        tally.add(task, outcome)
    return tally.totals()


@given(st.lists(OUTCOMES, max_size=20))
def test_outcomes_come_through_a_message_with_the_same_totals(outcomes):
    entry = json.loads(json.dumps(cache_addition(outcomes)))
    usage = addition(USAGE, {"cpu_s": 1.0, "peak_memory": None})
    received = measured([usage, entry]).remembered
    assert tallied(("f", each) for each in received) == tallied(("f", each) for each in outcomes)
    assert len(received) == len({(each.kind, each.reason) for each in outcomes})


@given(st.lists(st.tuples(st.sampled_from(["f", "g"]), OUTCOMES), max_size=20))
def test_totals_of_rows_are_those_of_the_outcomes(outcomes):
    rows = [{"task_name": task, "tag": None, **each.to_message()} for task, each in outcomes]
    damaged = [{}, {"task_name": "f"}, {"task_name": "f", "kind": "lost"}, {"task_name": 3}]
    assert cached_in([*rows, *damaged, {**MISSED.to_message(), "count": -1}])[0] == tallied(
        outcomes
    )


def test_totals_count_hits_and_misses_and_the_saved_time():
    totals = tallied([("f", FOUND), ("f", FOUND), ("f", MISSED)])
    assert (totals.found, totals.missed, totals.saved_s) == (2, 1, 4.0)
    assert cache_in_words(totals) == "2 hits (4.0 s saved), 1 ran"
    assert cache_in_detail(totals).endswith("1 ran: 1 x argument x changed")
    assert not tallied([])


def test_rare_reasons_are_counted_together():
    many = [
        ("f", CacheOutcome(OutcomeKind.MISSED, reason=f"{n}")) for n in range(TOLD_REASONS + 30)
    ]
    totals = tallied([*many, ("f", MISSED), *many[:2]])
    assert totals.missed == sum(each.count for each in totals.reasons) == TOLD_REASONS + 33
    assert len(totals.reasons) == TOLD_REASONS + 1
    assert (totals.reasons[0].reason, totals.reasons[0].count) == (OTHER_REASONS, 31)


def test_an_overview_keeps_its_totals_as_plain_values():
    overview = Overview(1.0, remembered=tallied([("f", FOUND), ("f", MISSED)]))
    plain = json.loads(json.dumps(overview.to_dict()))
    again = Overview.from_dict(plain)
    assert again.remembered.reasons[0].reason == MISSED.reason
    assert json.loads(json.dumps(again.to_dict())) == plain
    del plain["remembered"]  # of an earlier version
    assert not Overview.from_dict(plain).remembered


def test_outcomes_that_say_the_same_are_joined():
    twice = joined([FOUND, FOUND, MISSED])
    assert [(each.kind, each.count, each.saved_s) for each in twice] == [
        (OutcomeKind.FOUND, 2, 4.0), (OutcomeKind.MISSED, 1, 0.0)
    ]  # fmt: skip


class Line:
    """A client whose event loop and connection are only looked at."""

    def __init__(self):
        self.timers, self.messages = [], []
        self.loop = SimpleNamespace(
            add_callback=lambda call, *args: call(*args),
            call_later=lambda _, tell: self.timers.append(tell),
        )
        self._scheduler_identity = {WIRE: WIRE_VERSION}
        self._send_to_scheduler = self.messages.append
        self.calls = FoundCalls(self)


def test_hits_of_a_client_are_told_together():
    line = Line()
    for number in range(10_000):
        line.calls.add("fit" if number % 4 else "grow", "model", 0.5)
    assert len(line.timers) == 1
    assert line.messages == []
    line.timers[0]()
    (message,) = line.messages
    assert message["calls"] == [
        ["grow", "model", 2500, 1250.0], ["fit", "model", 7500, 3750.0]
    ]  # fmt: skip
    line.calls.tell()  # when the client closes: nothing is left
    assert len(line.messages) == 1
    line.calls.add("fit", "", 1.0)
    assert len(line.timers) == 2
    line.calls.tell()
    assert line.messages[1]["calls"] == [["fit", "", 1, 1.0]]


def test_a_message_about_hits_is_bounded():
    line = Line()
    for number in range(3 * TOLD_NAMES):
        line.calls.add(f"task {number}", "", 1.0)
    line.calls.tell()
    calls = line.messages[0]["calls"]
    assert len(calls) == TOLD_NAMES + 1
    assert calls[-1] == [*OTHERS, 2 * TOLD_NAMES, 2.0 * TOLD_NAMES]
