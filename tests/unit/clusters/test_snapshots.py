"""Snapshots of a cluster's status: few, and never written in the event loop."""

import asyncio
import threading
import time
from types import SimpleNamespace

import pytest
from tornado.ioloop import IOLoop

from scalable.clusters import scheduler_services
from scalable.clusters.scheduler_services import SHARE, Snapshots
from scalable.records import ClusterDirectory

PAUSE_S = 0.02


@pytest.fixture(autouse=True)
def short_pause(monkeypatch):
    monkeypatch.setattr(scheduler_services, "PAUSE_S", PAUSE_S)


class Place:
    """Stands for a cluster's directory, whose disk may hang, and for its controller."""

    def __init__(self, hangs=False):
        self.workers = 0
        self.built = 0
        self.written = []
        self.threads = set()
        self.disk = threading.Event()
        if not hangs:
            self.disk.set()
        self.scheduler = SimpleNamespace(loop=IOLoop.current())

    def status(self):
        self.built += 1
        return {"workers": self.workers, "managers": [], "written_at": time.time()}

    def write_status(self, status):
        self.threads.add(threading.current_thread())
        assert self.disk.wait(10)
        self.written.append(status["workers"])


async def until(condition):
    """Wait, for 10 s at most."""
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


async def test_many_changes_make_few_snapshots_the_last_of_which_is_whole():
    place = Place()
    writer = Snapshots(place, place)
    began = time.monotonic()
    for place.workers in range(1, 101):
        writer.changed()
        await asyncio.sleep(0.001)
    await until(lambda: place.written and place.written[-1] == 100)
    assert place.built <= 2 + (time.monotonic() - began) / PAUSE_S
    writer.close()


async def test_a_status_that_takes_long_is_made_seldom():
    place = Place()
    status, paused = place.status, []

    def slow_status():
        time.sleep(0.05)
        return status()

    place.status = slow_status
    place.scheduler.loop = SimpleNamespace(
        add_callback=lambda function: function(),
        call_later=lambda seconds, _: paused.append(seconds),
    )
    writer = Snapshots(place, place)
    writer.changed()
    assert paused
    assert paused[0] >= 0.05 / SHARE
    writer.close()


async def test_the_event_loop_goes_on_while_a_slow_disk_writes():
    place = Place(hangs=True)
    writer = Snapshots(place, place)
    writer.changed()
    await until(lambda: place.threads)
    place.workers = 1
    writer.changed()
    await asyncio.sleep(3 * PAUSE_S)
    assert place.written == []
    place.disk.set()
    await until(lambda: place.written == [0, 1])  # one after the other
    assert threading.current_thread() not in place.threads
    writer.close()


async def test_an_unchanged_snapshot_is_written_again_only_when_it_is_old(monkeypatch):
    clock = SimpleNamespace(now=1000.0, perf_counter=time.perf_counter)
    clock.monotonic = lambda: clock.now
    monkeypatch.setattr(scheduler_services, "time", clock)
    place = Place()
    writer = Snapshots(place, place)
    for times, passed_s in enumerate((0, scheduler_services.INTERVAL_S - 0.1, 0.1), 1):
        clock.now += passed_s
        writer.changed()
        await until(lambda times=times: place.built == times)
        await until(lambda: not writer._running)
        assert len(place.written) == (1 if times < 3 else 2)
    writer.close()


async def test_a_change_in_another_thread_is_written():
    place = Place()
    writer = Snapshots(place, place)
    await asyncio.to_thread(writer.changed)
    await until(lambda: place.written == [0])
    writer.close()


async def test_after_closing_nothing_is_written():
    place = Place(hangs=True)
    writer = Snapshots(place, place)
    writer.changed()
    await until(lambda: place.threads)
    place.workers = 1
    writer.changed()
    threading.Timer(0.05, place.disk.set).start()
    writer.close()
    assert place.written == [0]  # the one that had begun is whole
    writer.changed()
    await asyncio.sleep(3 * PAUSE_S)
    assert place.written == [0]


async def test_a_scheduler_whose_record_was_removed_is_told(tmp_path):
    place, told = Place(), []
    directory = ClusterDirectory(tmp_path / "clusters" / "one")
    writer = Snapshots(directory, place, told.append)
    writer.changed()
    await until(lambda: place.built)
    await asyncio.sleep(2 * PAUSE_S)
    assert told == []  # the whole file system is away, and may come back
    directory.path.parent.mkdir()
    place.workers = 1
    writer.changed()
    await until(lambda: told == ["its record was removed"])
    writer.close()
