"""The notes about why calls wait do not outlive their use."""

import time
from types import SimpleNamespace

from scalable.scheduler.waiting import REPEAT_WORD_S, WaitingCalls


def test_what_was_said_is_remembered_only_as_long_as_it_is_not_repeated():
    events = []
    scheduler = SimpleNamespace(
        workers={}, unrunnable={}, queued=[], log_event=lambda topic, event: events.append(event)
    )
    waiting = WaitingCalls(scheduler, SimpleNamespace(look=lambda pools: None))
    now = time.monotonic()
    waiting._say("tcp://gone:1", "calls wait", [], now - REPEAT_WORD_S)
    waiting._say("tcp://gone:2", "calls wait", [], now)
    waiting.look({})
    assert list(waiting._said_at) == ["tcp://gone:2"]
