"""Archives are waited for if they are announced, and the oldest are dropped."""

import asyncio
from types import SimpleNamespace

import pytest

from scalable.scheduler import code_store
from scalable.scheduler.code_store import FileStore


@pytest.fixture
def store():
    return FileStore(SimpleNamespace(handlers={}))


async def test_an_announced_archive_is_waited_for(store):
    store.expect("d")
    asking = [asyncio.ensure_future(store.part("d", number)) for number in (0, 1)]
    await asyncio.sleep(0)
    assert not store.take("d", 1, 2, b"two")  # parts may come in any order
    await asyncio.sleep(0)
    assert not any(each.done() for each in asking)
    assert store.take("d", 0, 2, b"one")
    assert await asyncio.gather(*asking) == [(2, b"one"), (2, b"two")]
    assert store.take("d", 0, 2, b"one"), "another client sends the same files"
    assert await store.whole("d") == b"onetwo"


async def test_an_archive_that_nobody_has_announced_is_not_waited_for(store):
    assert await store.part("unknown", 0) is None


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
    assert await store.part("b", 0) is None
    assert await store.part("a", 0) == (1, bytes(10))
    store.take("of a client that ended", 0, 2, bytes(5))
    store.take("large", 0, 1, bytes(100))
    assert list(store._archives) == ["unfinished", "large"]
