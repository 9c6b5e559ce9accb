"""Garbage collection in the program of a scheduler, which holds the event loop."""

import gc

import pytest

from scalable.programs import scheduler


@pytest.fixture
def collection_as_before():
    before = gc.get_threshold()
    yield before
    gc.set_threshold(*before)
    gc.unfreeze()


def test_modules_are_not_looked_at_again_and_again(collection_as_before):
    scheduler._collect_seldom()
    assert gc.get_threshold() == tuple(3 * each for each in collection_as_before)
    assert gc.get_freeze_count() > 10_000
    left = gc.get_objects()
    assert not any(each is vars(scheduler) for each in left)
