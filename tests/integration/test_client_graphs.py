"""Graphs of tasks on real worker processes: where nodes run, failures, and Dask's own graphs."""

import asyncio
import json
import operator
import os
import time
import traceback
from concurrent.futures import ThreadPoolExecutor

import dask
import pytest
from dask.task_spec import Task, TaskRef
from distributed import Future, get_worker

from scalable.client.client import ScalableClient
from scalable.errors import ClusterError

MANIFEST = """\
version: 1
project: {name: graphs}
targets:
  local: {provider: local, processes: true}
components:
  a: {cpus: 1, workers: 1}
  b: {cpus: 1, workers: 1}
"""
WORKERS = 2


@pytest.fixture
def other_client(client):
    address, security = client.scheduler.address, client.security
    with ScalableClient(address, security=security, set_as_default=False) as other:
        yield other


def inc(x):
    return x + 1


def whose(*_):
    """The tag of the worker that runs the call."""
    return next(iter(get_worker().state.total_resources), None)


def fail(x):
    raise LookupError(x)


def touch(path, *_):
    path.touch()


def nap(value):
    time.sleep(0.02)
    return value


def seen(client):
    """Keys that the scheduler knows."""
    return client.run_on_scheduler(lambda dask_scheduler: list(dask_scheduler.tasks))


# Results -------------------------------------------------------------------------------------------


def test_results_come_in_the_keys_order(client):
    graph = {
        "a": 2,
        "b": 3,
        "c": (operator.add, "a", "b"),
        "d": (operator.mul, "c", "b"),
        "e": (operator.sub, "d", "c"),
    }
    assert client.get(graph, keys=["e", "a", "c"]) == [10, 2, 5]
    assert client.get(graph, [["c", "d"], "b"], tag="a") == [[5, 15], 3]
    assert client.get(graph, "d") == 15
    assert client.get(graph, []) == []


def test_only_what_the_keys_need_is_run(client, tmp_path):
    wanted, unwanted = tmp_path / "wanted", tmp_path / "unwanted"
    graph = {"a": (touch, wanted), "b": (touch, unwanted), "c": (whose, "a"), "d": (whose, "b")}
    client.get(graph, "c", tag="a")
    assert (wanted.exists(), unwanted.exists()) == (True, False)


def test_nodes_run_where_their_tags_are(client):
    graph = {f"n{i}": (whose, f"n{i - 1}") for i in range(1, 7)} | {"n0": [0] * 3}
    keys = [f"n{i}" for i in range(1, 7)]
    assert client.get(graph, keys, tag="a") == ["a"] * 6
    turns = {f"n{i}": "b" for i in range(0, 7, 2)}
    assert client.get(graph, keys, tag="a", tags=turns) == ["a", "b"] * 3
    assert client.get(graph, keys[:2], tags={"n1": "b", "n2": "a"}) == ["b", "a"]


def test_gets_with_the_same_names_do_not_see_each_other(client, other_client):
    def get(number):
        by = (client, other_client)[number % 2]
        graph = {"a": (nap, number), "b": (operator.add, "a", 100), "c": (operator.add, "b", "a")}
        return by.get(graph, ["c", "b", "a"], tag="ab"[number % 2])

    with ThreadPoolExecutor(8) as threads:
        results = list(threads.map(get, range(24)))
    assert results == [[100 + 2 * n, 100 + n, n] for n in range(24)]


def test_futures_in_and_out(client):
    five = client.submit(inc, 4, tag="b")
    large = client.send(list(range(1000)))
    graph = {
        "x": (operator.add, five, 1),
        "y": (operator.getitem, {"k": [five, large]}, "k"),
        "z": five,
        "w": (sum, large),
    }
    x, (y, z), w = client.get(graph, ["x", ["y", "z"], "w"], tag="a", sync=False)
    assert all(isinstance(future, Future) for future in (x, y, z, w))
    assert client.gather([x, y, z, w]) == [6, [5, list(range(1000))], 5, sum(range(1000))]


def test_nothing_is_left_behind(client, eventually):
    client.get({"a": (inc, 1), "b": (inc, "a")}, ["b"])
    eventually(lambda: not any(str(key).startswith("inc-") for key in seen(client)))


def test_a_get_within_a_task_does_not_wait_for_its_own_slot(client):
    def outer():
        from distributed import get_client

        return get_client().get({"a": (inc, 1), "b": (inc, "a")}, "b", resources={"a": 1})

    assert client.submit(outer, tag="a").result(timeout=60) == 3


# Failures ------------------------------------------------------------------------------------------


def test_a_failing_node_raises_its_own_error(client):
    graph = {"a": (inc, 1), "bad": (fail, "a"), "c": (inc, "bad")}
    with pytest.raises(LookupError, match="2") as raised:
        client.get(graph, ["c", "a"], tag="a")
    assert "fail" in {frame.name for frame in traceback.extract_tb(raised.value.__traceback__)}
    good, bad = client.get(graph, ["a", "c"], sync=False)
    assert good.result() == 2
    assert isinstance(bad.exception(), LookupError)
    assert client.get(graph, ["a"]) == [2]


@pytest.mark.parametrize(
    ("graph", "keys", "options", "words"),
    [
        ({"b": (inc, "c"), "c": (inc, "b")}, ["a"], {}, "cycle: b -> c -> b"),
        ({}, ["a", "x"], {}, "no node 'x'"),
        ({}, ["a", "a"], {}, "occurs twice in keys"),
        ({}, ["a"], {"tags": {"x": "a"}}, "no node 'x'"),
        ({}, ["a"], {"tag": "nobody"}, "no pool has the tag 'nobody'"),
        ({"b": 1}, ["a"], {"tags": {"b": "nobody"}}, "no pool has the tag 'nobody'"),
    ],
)
def test_nothing_starts_of_what_is_refused(client, tmp_path, graph, keys, options, words):
    path = tmp_path / "started"
    before = set(seen(client))
    with pytest.raises(ClusterError, match=words):
        client.get({"a": (touch, path), **graph}, keys, **options)
    assert set(seen(client)) <= before
    assert not path.exists()


# Dask's own graphs, and its options ----------------------------------------------------------------


def test_dasks_collections_compute_as_before(client):
    total = dask.delayed(sum)([dask.delayed(inc)(i) for i in range(10)])
    assert total.compute() == 55
    assert total.compute(optimize_graph=False, retries=1, priority=2) == 55
    assert dask.compute(total, dask.delayed(inc)(1), scheduler=client.get) == (55, 2)
    kept = total.persist()
    assert client.get(kept.__dask_graph__(), kept.__dask_keys__()) == [55]
    new = {"x": Task("x", inc, 1), "y": Task("y", inc, TaskRef("x"))}
    assert client.get(new, ["y", "y"], sync=False)[0].key == "y"
    where = dask.delayed(whose)().__dask_graph__()
    assert client.get(where, list(where), tag="b") == ["b"]
    with pytest.raises(ClusterError, match="plain dict"):
        client.get(new, "y", tags={"x": "a"})


def test_dasks_options_hold_for_raw_graphs(client):
    address = client.submit(lambda: get_worker().address, tag="b").result()
    graph = {"a": (whose,), "b": (whose, "a")}
    assert client.get(graph, ["a", "b"], workers=[address], optimize_graph=True) == ["b", "b"]
    with dask.annotate(workers=[address]):
        assert client.get(graph, ["b"]) == ["b"]
    with pytest.raises(ClusterError, match="no node 'x'"):
        client.get(graph, ["b"], actors=["x"])
    restricted = {"resources": {"b": 1}}
    assert client.get(graph, ["b"], **restricted) == ["b"]
    counter = client.get({"n": (list, [1, 2])}, "n", sync=False, actors={"n": True}).result()
    assert counter.append(3).result() is None
    assert counter.__len__().result() == 3


def test_in_a_coroutine(client):
    async def scenario():
        kwargs = {"security": client.security, "set_as_default": False, "asynchronous": True}
        async with ScalableClient(client.scheduler.address, **kwargs) as ours:
            graph = {"a": (nap, 1), "b": (operator.add, "a", 1), "where": (whose, "b")}
            return await ours.get(graph, ["b", "where"], tag="b")

    assert asyncio.run(scenario()) == [2, "b"]


def test_records_name_the_functions(session, client, eventually):
    client.get({"n": (os.path.basename, "/x/y"), "m": (len, "n")}, "m", tag="a")
    path = session.run_path / "tasks.jsonl"

    def ended():
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        found = {(r["task_name"], r["tag"]) for r in rows if r["state"] == "succeeded"}
        return {("basename", "a"), ("len", "a")} <= found

    eventually(ended)
