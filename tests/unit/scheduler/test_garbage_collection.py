"""Garbage collection in the program of a scheduler, which holds the event loop."""

import gc

import pytest

from scalable.clusters.programs import scheduler
from scalable.clusters.programs.scheduler import NEVER, SHARE, SeldomCollections


@pytest.fixture
def clock(monkeypatch):
    """A clock that each look moves on by some time."""

    class Clock:
        now, moves = 1e6, 0.0

        def monotonic(self):
            self.now += self.moves
            return self.now

    made = Clock()
    monkeypatch.setattr(scheduler, "time", made)
    return made


@pytest.fixture
def before():
    """Thresholds as they were; collections begin by hand only."""
    thresholds, callbacks, frozen = gc.get_threshold(), list(gc.callbacks), gc.get_freeze_count()
    gc.disable()
    SeldomCollections().begin()
    yield thresholds
    gc.set_threshold(*thresholds)
    gc.callbacks[:] = callbacks
    gc.unfreeze()
    if frozen:
        gc.freeze()
    gc.enable()


def test_after_a_full_collection_the_next_one_waits_in_proportion_to_its_time(before, clock):
    clock.moves = 0.5
    gc.collect()
    assert gc.get_threshold()[2] == NEVER
    clock.moves, began = 0.0, clock.now
    clock.now = began + 0.5 / SHARE - 1
    gc.collect(1)
    assert gc.get_threshold()[2] == NEVER
    clock.now = began + 0.5 / SHARE + 1
    gc.collect(0)
    assert gc.get_threshold() == tuple(3 * each for each in before)


def test_collections_of_the_young_go_on_as_before(before, clock):
    clock.moves = 0.5
    gc.collect()
    assert gc.get_threshold()[:2] == tuple(3 * each for each in before[:2])
