"""A task that cannot be pickled fails with one message, which names the function and the part."""

import logging
import sys
import threading
import types

import pytest

from scalable import ScalableSession
from scalable.errors import ClusterError


def take(*args, **kwargs):
    return len(args)


@pytest.fixture(scope="module")
def client():
    with ScalableSession.local({"a": 1}) as client:
        yield client


def warnings_in(caplog):
    # Dask's loggers have levels of their own, and log what they cannot read here.
    return [each for each in caplog.records if each.levelno >= logging.WARNING]


WAYS = {
    "submit": (
        lambda client, lock: client.submit(take, 1, lock, tag="a").result(30),
        "task 'take' cannot be sent to a worker: its argument 2 (lock) cannot be pickled",
    ),
    "keyword": (
        lambda client, lock: client.submit(take, x=[lock], tag="a").result(30),
        "task 'take' cannot be sent to a worker: its argument x= (list) cannot be pickled",
    ),
    "map": (
        lambda client, lock: client.gather(client.map(take, [1, 2, lock], tag="a")),
        "element 2 of its argument 1 (lock) cannot be pickled",
    ),
    "function": (
        lambda client, lock: client.submit(lambda: lock, tag="a").result(30),
        "its function (function) cannot be pickled",
    ),
    "graph": (
        lambda client, lock: client.get({"node": (take, lock)}, "node", tag="a"),
        "its node 'node' (tuple) cannot be pickled",
    ),
    "executor": (
        lambda client, lock: client.pool(tag="a").submit(take, lock).result(30),
        "task 'take' cannot be sent to a worker: its argument 1 (lock) cannot be pickled",
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_what_cannot_be_pickled_is_named_in_one_message(client, way, caplog):
    call, text = WAYS[way]
    with (
        caplog.at_level(logging.WARNING),
        pytest.raises(TypeError, match="cannot pickle '_thread.lock' object") as caught,
    ):
        call(client, threading.Lock())
    assert text in str(caught.value)
    assert warnings_in(caplog) == []
    # The cluster goes on.
    assert client.submit(take, 1, tag="a").result(30) == 1


class Exits:
    """An object that raises SystemExit when it is pickled."""

    def __reduce__(self):
        raise SystemExit(3)


def test_a_task_whose_pickling_exits_fails_alone(client):
    with client.executor(tag="a") as executor:
        futures = [executor.submit(take, each) for each in (1, Exits(), 2)]
        assert [futures[0].result(30), futures[2].result(30)] == [1, 1]
        with pytest.raises(ClusterError, match="could not be sent: SystemExit"):
            futures[1].result(30)
        results = executor.imap(take, [1, 2, Exits(), 3])
        assert [next(results), next(results)] == [1, 1]
        with pytest.raises(ClusterError, match="could not be sent: SystemExit"):
            next(results)
        assert list(results) == [1]
        results, outcomes = executor.imap_unordered(take, [1, 2, Exits(), 3]), []
        while True:
            try:
                outcomes.append(next(results))
            except StopIteration:
                break
            except ClusterError:
                outcomes.append("not sent")
    assert sorted(map(str, outcomes)) == ["1", "1", "1", "not sent"]


class BrokenSpec:
    """Specification of a module that raises when its origin is read."""

    @property
    def origin(self):
        raise RuntimeError("no origin")


def test_what_cannot_be_sent_for_another_reason_fails(client, monkeypatch):
    with client.executor(tag="a") as executor:
        assert executor.submit(take, 1).result(30) == 1
        broken = types.ModuleType("broken_module")
        broken.__spec__ = BrokenSpec()
        monkeypatch.setitem(sys.modules, "broken_module", broken)
        with pytest.raises(ClusterError, match="could not be sent: RuntimeError"):
            executor.submit(take, 1).result(30)
        monkeypatch.delitem(sys.modules, "broken_module")
        assert executor.submit(take, 1).result(30) == 1


def test_entries_of_the_search_path_that_python_ignores_are_ignored(client, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "path", [*sys.path, tmp_path])
    assert client.executor(tag="a").submit(take, 1).result(30) == 1


@pytest.fixture(scope="module")
def far():
    with ScalableSession.local({"a": 1}, processes=True) as client:
        yield client


def test_a_large_object_that_cannot_be_pickled_is_refused_in_one_message(far, caplog):
    large = [threading.Lock(), bytes(2_000_000)]
    with caplog.at_level(logging.WARNING):
        with pytest.raises(TypeError, match=r"an object \(list\) cannot be sent to the workers"):
            far.send(large)
        with pytest.raises(TypeError, match="cannot be sent to (a worker|the workers)"):
            far.pool(tag="a").submit(take, large).result(60)
    assert warnings_in(caplog) == []
    assert far.submit(take, 1, tag="a").result(60) == 1


def test_a_result_that_cannot_be_pickled_is_named_in_one_message(far, caplog):
    calls = [far.submit(threading.Lock, tag="a", task="lock") for _ in range(2)]
    with caplog.at_level(logging.WARNING):
        with pytest.raises(TypeError) as one:
            calls[0].result(60)
        with pytest.raises(TypeError, match=r"the result of a task \(lock\) cannot be sent: "):
            far.gather(calls)
    assert str(one.value) == (
        "the result of task 'lock' (lock) cannot be sent: cannot pickle '_thread.lock' object. "
        "Return an object that can be pickled, or write it to a file in the task"
    )
    assert warnings_in(caplog) == []
