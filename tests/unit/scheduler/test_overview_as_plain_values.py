"""Overviews and events as the plain values that are sent to readers."""

import json
from dataclasses import asdict

from scalable.model import PoolStatus
from scalable.model.overview import (
    CallCounts,
    Events,
    Overview,
    PoolOverview,
    PredictedEnd,
    RunningCall,
    TaskOverview,
)


def test_an_overview_becomes_plain_values_and_back():
    unended = TaskOverview("u", None, CallCounts(waiting=2))
    overview = Overview(
        at=1.0,
        seq=7,
        cluster={"name": "c", "state": "running"},
        pools={"a": PoolOverview(PoolStatus(wanted=2, running=1), busy=1, adaptive=(0, None))},
        tasks=(TaskOverview("t", "a", CallCounts(1, 2, 3, 4, 5), 1.5), unended),
        running=(RunningCall("t-1", "t", "a", "w", 2.0),),
        managers=({"id": "m", "pools": {}},),
        workers=1,
        clients=1,
        end=PredictedEnd(2.0, 1.5, 3.0, "why"),
        cost={"spent": 1.0},
    )
    plain = overview.to_dict()
    assert plain == {**asdict(overview), "calls": asdict(overview.calls)}
    assert Overview.from_dict(json.loads(json.dumps(plain))) == overview


def test_a_span_that_grows_does_not_change_an_answer_that_was_given():
    span = ["w", "t", 1.0, 1.01, False, 1]
    events = Events(3, decisions=[{"tag": "a"}], spans=[span])
    answer = events.to_dict()
    assert answer == asdict(events)
    span[3] = 2.0
    assert answer["spans"][0][3] == 1.01
