"""Overviews and events as the plain values that are sent to readers."""

from dataclasses import asdict

from scalable.model.overview import Events


def test_a_span_that_grows_does_not_change_an_answer_that_was_given():
    span = ["w", "t", 1.0, 1.01, False, 1]
    events = Events(3, decisions=[{"tag": "a"}], spans=[span])
    answer = events.to_dict()
    assert answer == asdict(events)
    span[3] = 2.0
    assert answer["spans"][0][3] == 1.01
