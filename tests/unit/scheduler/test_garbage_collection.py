"""Garbage collection in the program of a scheduler, which holds the event loop."""

import gc
import weakref

import pytest

from scalable.programs import collecting, scheduler
from scalable.programs.collecting import LONG_S, SHARE, ShortCollections


class Node:
    """Something that refers to itself."""

    def __init__(self):
        self.itself = self


@pytest.fixture
def collections():
    before, callbacks = gc.get_threshold(), list(gc.callbacks)
    gc.disable()
    made = ShortCollections()
    made.begin()
    yield made
    gc.set_threshold(*before)
    gc.callbacks[:] = callbacks
    gc.unfreeze()
    gc.enable()


@pytest.fixture
def clock(monkeypatch):
    """A clock that each full collection moves on by some time."""

    class Clock:
        now, takes = 1e6, 0.0

        def monotonic(self):
            self.now += self.takes
            return self.now

    made = Clock()
    monkeypatch.setattr(collecting, "time", made)
    return made


def test_modules_are_not_looked_at_again_and_again(collections):
    assert gc.get_freeze_count() > 10_000
    assert not any(each is vars(scheduler) for each in gc.get_objects())


def test_collections_come_a_third_as_often():
    before, callbacks = gc.get_threshold(), list(gc.callbacks)
    try:
        ShortCollections().begin()
        assert gc.get_threshold() == tuple(3 * each for each in before)
    finally:
        gc.set_threshold(*before)
        gc.callbacks[:] = callbacks
        gc.unfreeze()


def test_the_survivors_of_a_short_collection_are_looked_at_again(collections):
    kept = [Node()]
    gc.collect()
    assert any(each is kept for each in gc.get_objects())


def test_the_survivors_of_a_long_collection_are_left_out_until_one_sees_everything(clock):
    before, callbacks = gc.get_threshold(), list(gc.callbacks)
    gc.disable()
    try:
        collections = ShortCollections()
        clock.takes = 0.01
        collections.begin()
        kept, clock.takes = [Node()], 2 * LONG_S
        gc.collect()
        assert not any(each is kept for each in gc.get_objects())
        gone = weakref.ref(kept.pop())
        clock.takes = 0.0
        gc.collect()
        assert gone() is not None  # it was left out
        clock.now += 1 / SHARE  # more than the first collection demands
        gc.collect()
        assert gone() is None
    finally:
        gc.set_threshold(*before)
        gc.callbacks[:] = callbacks
        gc.unfreeze()
        gc.enable()


def test_collections_of_the_young_change_nothing(collections):
    count = gc.get_freeze_count()
    gc.collect(0)
    gc.collect(1)
    assert gc.get_freeze_count() == count
