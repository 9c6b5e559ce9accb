"""Units are stopped although their place does not answer for a while."""

import asyncio
from types import SimpleNamespace

import pytest

from scalable.errors import ProviderError
from scalable.manager import reconciler as module
from scalable.manager.reconciler import Stops


class Place:
    """A launcher that refuses to stop units a number of times."""

    def __init__(self, refusals, *, transient=True):
        self.left = refusals
        self.transient = transient
        self.asked = 0
        self.stopped = []

    async def stop(self, names):
        self.asked += 1
        if self.left:
            self.left -= 1
            raise ProviderError("the place does not answer", transient=self.transient)
        self.stopped += names


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(module, "FIRST_PAUSE_S", 0.001)


def stopping(place):
    """Begin to stop a unit in a place; return the requests, and the names that may be used again."""
    free = []
    stops = Stops(free.extend)
    stops.begin(SimpleNamespace(tag="crops", launcher=place), ["crops-1"])
    return stops, free


async def until(condition):
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.001)


async def test_a_place_that_does_not_answer_is_asked_until_the_unit_is_stopped():
    place = Place(3)
    _, free = stopping(place)
    await until(lambda: place.stopped)
    await until(lambda: free == ["crops-1"])
    assert place.asked == 4


async def test_the_name_of_a_unit_stays_taken_while_it_may_run(monkeypatch):
    monkeypatch.setattr(module, "FIRST_PAUSE_S", 600.0)
    place = Place(1)
    stops, free = stopping(place)
    await until(lambda: place.asked == 1)
    await asyncio.sleep(0)
    assert free == []
    await stops.finish()  # asks a last time, and does not wait for the pause
    assert place.stopped == ["crops-1"]
    assert free == ["crops-1"]


async def test_the_end_of_a_cluster_does_not_wait_for_a_place_that_stays_away(caplog):
    place = Place(10**9)
    stops, _ = stopping(place)
    async with asyncio.timeout(30):
        await stops.finish()
    assert place.stopped == []
    assert "units ['crops-1'] may still run" in caplog.text


async def test_a_refusal_that_lasts_is_not_repeated():
    place = Place(1, transient=False)
    _, free = stopping(place)
    await until(lambda: free)
    assert (place.asked, place.stopped) == (1, [])
