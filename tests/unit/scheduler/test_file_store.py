"""Archives are waited for if they are announced, and the oldest are dropped."""

import asyncio
from types import SimpleNamespace

import pytest

from scalable.scheduler import code_store
from scalable.scheduler.code_store import FileStore


@pytest.fixture
def store():
    return FileStore(SimpleNamespace(handlers={}))


async def test_an_announced_archive_is_waited_for_and_counted_when_its_last_part_is_sent(store):
    store.expect("d")
    assert store.lacks("d")
    asking = [asyncio.ensure_future(store.part("d", number)) for number in (0, 1)]
    await asyncio.sleep(0)
    store.take("d", 1, 2, b"two")  # parts may come in any order
    await asyncio.sleep(0)
    assert not any(each.done() for each in asking)
    store.take("d", 0, 2, b"one")
    assert await asyncio.gather(*asking) == [(2, b"one"), (2, b"two")]
    assert not store.lacks("d")
    assert store.sent == {"d": 1}
    assert await store.whole("d") == b"onetwo"


async def test_an_archive_that_nobody_has_announced_is_not_waited_for(store):
    assert await store.part("unknown", 0) is None
    assert store.lacks("unknown")


async def test_an_archive_that_does_not_arrive_is_given_up(store, monkeypatch):
    monkeypatch.setattr(code_store, "ARRIVAL_TIMEOUT_S", 0.01)
    store.expect("d")
    assert await store.part("d", 0) is None
    assert await store.whole("d") is None


async def test_archives_that_nobody_has_used_for_longest_are_dropped(store, monkeypatch):
    monkeypatch.setattr(code_store, "MOST_KEPT", 25)
    store.take("a", 0, 1, bytes(10))
    store.take("b", 0, 1, bytes(10))
    await store.part("a", 0)
    store.expect("unfinished")
    store.take("c", 0, 1, bytes(10))
    assert [store.lacks(name) for name in "abc"] == [False, True, False]
    assert await store.part("b", 0) is None
    store.take("large", 0, 1, bytes(100))
    assert [store.lacks(name) for name in ("a", "c", "large")] == [True, True, False]


def test_an_archive_whose_client_ended_while_it_sent_it_is_dropped(store, monkeypatch):
    store.take("part", 0, 2, bytes(100))
    store.take("whole", 0, 1, b"all")
    store.expect("announced")
    monkeypatch.setattr(code_store, "ARRIVAL_TIMEOUT_S", 0.0)
    store.expect("next")
    assert list(store._archives) == ["whole", "next"]
