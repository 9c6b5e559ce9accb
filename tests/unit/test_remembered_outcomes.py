"""Outcomes of remembered calls: what they say, their totals, and how clients tell of hits."""

import json
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from scalable.client.found_calls import OTHERS, TOLD_NAMES, FoundCalls
from scalable.protocol.measured import USAGE, addition, measured, remembered_addition
from scalable.showing.remembered import remembered_in_words, remembered_line
from scalable.spec.overview import Overview
from scalable.spec.remembered import (
    OTHER_REASONS,
    TOLD_KEYS,
    TOLD_REASONS,
    Kind,
    RememberedOutcome,
    RememberedTally,
    joined,
)
from scalable.telemetry.remembered import KeyedCalls, keyed_calls, totals_of

FOUND = RememberedOutcome(Kind.FOUND, saved_s=2.0)
WAITED = RememberedOutcome(Kind.WAITED, saved_s=3.0)
MISSED = RememberedOutcome(Kind.MISSED, reason="argument x is another", changed=("argument:x",))
OUTCOMES = st.builds(
    RememberedOutcome,
    st.sampled_from(Kind),
    st.integers(1, 5),
    st.integers(0, 100).map(float),
    st.sampled_from(["", "argument x is another", "the function f changed"]),
)


def tallied(outcomes):
    tally = RememberedTally()
    for task, outcome in outcomes:
        tally.add(task, outcome)
    return tally.totals()


@given(st.lists(OUTCOMES, max_size=20))
def test_outcomes_come_through_a_message_with_the_same_totals(outcomes):
    entry = json.loads(json.dumps(remembered_addition(outcomes)))
    usage = addition(USAGE, {"cpu_s": 1.0, "peak_memory": None})
    received = measured([usage, entry]).remembered
    assert tallied(("f", each) for each in received) == tallied(("f", each) for each in outcomes)
    assert len(received) == len({(each.kind, each.reason) for each in outcomes})


@given(st.lists(st.tuples(st.sampled_from(["f", "g"]), OUTCOMES), max_size=20))
def test_totals_of_rows_are_those_of_the_outcomes(outcomes):
    rows = [{"task_name": task, "tag": None, **each.to_message()} for task, each in outcomes]
    damaged = [{}, {"task_name": "f"}, {"task_name": "f", "kind": "lost"}, {"task_name": 3}]
    assert totals_of([*rows, *damaged, {**MISSED.to_message(), "count": -1}]) == tallied(outcomes)


def test_waiting_for_another_process_counts_as_found():
    totals = tallied([("f", FOUND), ("f", WAITED), ("f", MISSED)])
    assert (totals.found, totals.waited, totals.missed, totals.saved_s) == (2, 1, 1, 5.0)
    assert (
        remembered_in_words(totals)
        == "2 found (5.0 s saved, 1 computed by others meanwhile), 1 ran"
    )
    assert remembered_line(totals).endswith("1 ran: 1 x argument x is another")
    assert not tallied([])


def test_rare_reasons_are_counted_together():
    many = [("f", RememberedOutcome(Kind.MISSED, reason=f"{n}")) for n in range(TOLD_REASONS + 30)]
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
    twice = joined([FOUND, FOUND, MISSED, WAITED])
    assert [(each.kind, each.count, each.saved_s) for each in twice] == [
        (Kind.FOUND, 2, 4.0), (Kind.MISSED, 1, 0.0), (Kind.WAITED, 1, 3.0)
    ]  # fmt: skip


class Line:
    """An event loop and a connection that are only looked at."""

    def __init__(self):
        self.timers, self.messages = [], []
        self.calls = FoundCalls(lambda _, tell: self.timers.append(tell), self.messages.append)


def test_hits_of_a_client_are_told_together():
    line = Line()
    for number in range(10_000):
        line.calls.add("fit" if number % 4 else "grow", "model", 0.5, str(number))
    assert len(line.timers) == 1
    assert line.messages == []
    line.timers[0]()
    (message,) = line.messages
    keys = [[str(n) for n in range(10_000) if bool(n % 4) is fit] for fit in (False, True)]
    assert message["calls"] == [
        ["grow", "model", 2500, 1250.0, keys[0]], ["fit", "model", 7500, 3750.0, keys[1]]
    ]  # fmt: skip
    line.calls.tell()  # when the client closes: nothing is left
    assert len(line.messages) == 1
    line.calls.add("fit", "", 1.0, "key")
    assert len(line.timers) == 2
    line.calls.tell()
    assert line.messages[1]["calls"] == [["fit", "", 1, 1.0, ["key"]]]


def test_a_message_about_hits_is_bounded():
    line = Line()
    for number in range(3 * TOLD_NAMES):
        line.calls.add(f"task {number}", "", 1.0, "key")
    line.calls.tell()
    calls = line.messages[0]["calls"]
    assert len(calls) == TOLD_NAMES + 1
    assert calls[-1][:4] == [*OTHERS, 2 * TOLD_NAMES, 2.0 * TOLD_NAMES]
    for _ in range(2):  # each message has its own keys
        for number in range(TOLD_KEYS + 5):
            line.calls.add("fit", "", 1.0, str(number))
        line.calls.tell()
        (told,) = line.messages[-1]["calls"]
        assert told[2] == TOLD_KEYS + 5
        assert told[4] == list(map(str, range(TOLD_KEYS)))


def test_joined_outcomes_tell_the_keys_of_all_calls_up_to_a_number():
    found = [RememberedOutcome(Kind.FOUND, key=str(number)) for number in range(TOLD_KEYS + 5)]
    (few,) = joined(found[:3])
    assert (few.key, few.more_keys, few.count) == ("0", ("1", "2"), 3)
    assert RememberedOutcome.from_message(few.to_message()) == few
    (many,) = joined([few, *found[3:]])
    assert (len(many.keys), many.count) == (TOLD_KEYS, TOLD_KEYS + 5)
    assert joined([FOUND, FOUND])[0].keys == ()


def test_calls_of_a_task_are_counted_by_their_keys():
    def row(kind, task="fit", **more):
        return {"task_name": task, "tag": None, "kind": kind, **more}

    rows = [
        row("missed", key="a"),
        row("missed", key="a", reason="tried again"),
        row("missed", key="b"),
        row("found", key="b"),
        row("waited", key="c"),
        row("found", count=4, key="c", more_keys=["d"]),
        row("missed", reason="no key"),
        row("found", task="other", key="a"),
    ]
    numbers = {"a": 1, "b": 2, "c": 2, "d": 1}
    assert keyed_calls(rows, "fit") == KeyedCalls(Counter(numbers), unknown=3)
    assert keyed_calls(rows, "none") == KeyedCalls()
