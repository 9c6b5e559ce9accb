"""Rows about what workers use: few at once, however many workers there are."""

from collections import Counter
from itertools import chain
from types import SimpleNamespace

from distributed.core import Status
from distributed.scheduler import WorkerState

from scalable.scheduler import recorder as recorders
from scalable.scheduler.recorder import (
    FLUSH_INTERVAL_S,
    RESOURCES_AT_ONCE,
    RESOURCES_INTERVAL_S,
    Recorder,
)
from unit.scheduler.test_task_log import FakeScheduler


class Rows(list):
    def extend(self, stream, rows):
        super().extend((stream, dict(row)) for row in rows)


def worker(number):
    made = WorkerState(
        address=f"tls://10.0.0.1:{number}", status=Status.running, pid=1, name=f"a-{number}",
        nthreads=1, memory_limit=10**9, local_directory="/", nanny=None, server_id=str(number),
        services={}, versions={}, extra={},
    )  # fmt: skip
    made.resources = {"a": 1}
    made.metrics = {"cpu": 50.0, "memory": 10**8}
    return made


def recorded(count, ticks, monkeypatch, *, gone=()):
    """Return the names in the rows of each tick."""
    now = [1e9]
    monkeypatch.setattr(recorders, "time", SimpleNamespace(time=lambda: now[0]))
    scheduler, rows = FakeScheduler(), Rows()
    scheduler.workers = {w.address: w for w in map(worker, range(count))}
    recorder = Recorder(scheduler, rows, ["a"])
    told = []
    for tick in range(ticks):
        now[0] += FLUSH_INTERVAL_S
        rows.clear()
        recorder._tick()
        told.append([row["worker"] for stream, row in rows if stream == "resources"])
        if not tick:
            for number in gone:
                address = f"tls://10.0.0.1:{number}"
                del scheduler.workers[address]
                recorder.worker_removed(address)
    return told


def test_each_of_few_workers_has_a_row_every_five_seconds(monkeypatch):
    told = recorded(3, 20, monkeypatch)
    assert Counter(chain.from_iterable(told)) == {"a-0": 2, "a-1": 2, "a-2": 2}
    first, second = (tick for tick, names in enumerate(told) if names)
    assert (second - first) * FLUSH_INTERVAL_S == RESOURCES_INTERVAL_S


def test_each_of_many_workers_has_a_row_in_its_turn(monkeypatch):
    told = recorded(500, 100, monkeypatch)
    assert max(map(len, told)) == RESOURCES_AT_ONCE
    assert set(Counter(chain.from_iterable(told)).values()) == {2}


def test_a_worker_that_left_before_its_turn_has_no_row(monkeypatch):
    told = recorded(20, 2, monkeypatch, gone=[15])
    assert sorted(chain.from_iterable(told)) == sorted(f"a-{n}" for n in range(20) if n != 15)
