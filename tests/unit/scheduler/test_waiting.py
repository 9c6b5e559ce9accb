"""The notes about why calls wait do not outlive their use."""

import time
from types import SimpleNamespace

from scalable.scheduler.explaining import NAMED_SILENT, REPEAT_WORD_S, SILENT_S, WaitingTasks


def test_what_was_said_is_remembered_only_as_long_as_it_is_not_repeated():
    events = []
    scheduler = SimpleNamespace(
        workers={}, unrunnable={}, queued=[], log_event=lambda topic, event: events.append(event)
    )
    waiting = WaitingTasks(SimpleNamespace(scheduler=scheduler), None)
    now = time.monotonic()
    waiting._say("tcp://gone:1", "calls wait", [], now - REPEAT_WORD_S)
    waiting._say("tcp://gone:2", "calls wait", [], now)
    waiting.look({})
    assert list(waiting._said_at) == ["tcp://gone:2"]


def test_workers_without_heartbeats_are_named_once_and_together(caplog):
    workers = {n: SimpleNamespace(name=f"a-{n}", last_seen=time.time()) for n in range(5000)}
    scheduler = SimpleNamespace(workers=workers, unrunnable={}, queued=[])
    waiting = WaitingTasks(SimpleNamespace(scheduler=scheduler), None)
    for silent in range(40):  # 5,000 workers send one every 26 s
        workers[silent].last_seen -= 40
    waiting.look({})
    assert caplog.text == ""
    for silent in range(40):
        workers[silent].last_seen -= 60
    waiting.look({})
    waiting.look({})
    (record,) = caplog.records
    assert "a-0, a-1" in record.message
    assert record.message.count("a-") == NAMED_SILENT
    assert "35 others" in record.message


def test_few_workers_without_heartbeats_are_named_soon(caplog):
    workers = {1: SimpleNamespace(name="a-1", last_seen=time.time() - SILENT_S - 5)}
    scheduler = SimpleNamespace(workers=workers, unrunnable={}, queued=[])
    WaitingTasks(SimpleNamespace(scheduler=scheduler), None).look({})
    assert "of a-1: stopped" in caplog.text
