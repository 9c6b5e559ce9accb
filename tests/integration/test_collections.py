"""Dask's collections on pools: where their calls run, wrong tags, and shuffles within a pool."""

import time
import warnings

import dask
import dask.array as da
import dask.bag as db
import joblib
import numpy as np
import pytest
from distributed import SchedulerPlugin, get_worker

from scalable import ClusterError
from scalable.scheduler import explaining

MANIFEST = """\
version: 1
project: {name: collections}
targets:
  local: {provider: local, processes: false, threads_per_worker: 2}
components:
  load: {cpus: 1, workers: 2}
  other: {cpus: 1, workers: 2}
tasks:
  read: {component: load}
"""
WORKERS = 4


def whose(*_):
    """Return the tag of the worker that runs the call."""
    return next(iter(get_worker().state.total_resources), "none")


def places():
    return dask.delayed(lambda *tags: sorted({whose(), *tags}))(
        *[dask.delayed(whose, pure=False)() for _ in range(4)]
    )


WAYS = {
    "client.compute": lambda client, **asked: client.compute(places(), **asked).result(),
    "client.compute of several": lambda client, **asked: client.compute(
        [places(), places()], sync=True, **asked
    )[1],
    "client.persist": lambda client, **asked: client.persist(places(), **asked).compute(),
    "client.get": lambda client, **asked: client.get(
        (graph := places()).__dask_graph__(), graph.__dask_keys__(), **asked
    )[0],
    "client.get of a plain dict": lambda client, **asked: client.get(
        {"a": (whose,), "b": (lambda tag: sorted({tag, whose()}), "a")}, "b", **asked
    ),
    "dask.compute": lambda client, **asked: dask.compute(places(), **asked)[0],
    "dask.persist": lambda client, **asked: dask.persist(places(), **asked)[0].compute(),
    "x.compute": lambda client, **asked: places().compute(**asked),
    "x.persist": lambda client, **asked: places().persist(**asked).compute(),
}


def annotated_when_sent(client, **asked):
    graph = places()
    with dask.annotate(**asked):
        return graph.compute()


def annotated_when_made(client, **asked):
    with dask.annotate(**asked):
        graph = places()
    return graph.compute()


def annotated_and_submitted(client, **asked):
    with dask.annotate(**asked):
        return sorted(
            {client.submit(whose, pure=False).result(), *client.gather(client.map(whose, range(4)))}
        )


def used(client, **asked):
    with client.use(**asked):
        found = {
            *places().compute(),
            client.submit(whose, pure=False).result(),
            *client.gather(client.map(whose, range(4))),
            *client.pool().map(whose, range(4)),
        }
    return sorted(found)


WAYS |= {
    "client.use": used,
    "dask.annotate when sent": annotated_when_sent,
    "dask.annotate when made": annotated_when_made,
    "dask.annotate of single calls": annotated_and_submitted,
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
class TestKeywordsMeanTheSame:
    @pytest.mark.parametrize(
        "asked", [{"tag": "load"}, {"task": "read"}, {"tag": "load", "n": 2}], ids=str
    )
    def test_calls_run_in_the_pool(self, client, way, asked):
        assert way(client, **asked) == ["load"]

    @pytest.mark.parametrize(
        ("asked", "words"),
        [
            ({"tag": "nobody"}, "no pool has the tag 'nobody'"),
            ({"task": "reed"}, "did you mean 'read'"),
            ({"tag": "load", "n": 3}, "its workers have 2"),
            ({"tag": "other", "task": "read"}, "belongs to component 'load'"),
            ({"n": 2}, "give tag= too"),
            ({"tag": 7}, "tag=7"),
        ],
        ids=str,
    )
    def test_wrong_ones_are_refused(self, client, way, asked, words):
        with pytest.raises(ClusterError, match=words):
            way(client, **asked)


def test_a_block_with_a_pool_ends_and_is_nested_and_gives_way_to_keywords(client):
    with client.use("load"):
        with client.use(task="read"):
            assert client.submit(whose, pure=False).result() == "load"
        assert client.submit(whose, tag="other", pure=False).result() == "other"
        with pytest.raises(ZeroDivisionError), client.use("other"):
            raise ZeroDivisionError
        assert client.submit(whose, pure=False).result() == "load"
    assert {client.submit(whose, workers=w, pure=False).result() for w in workers_of(client)} == {
        "load",
        "other",
    }


def workers_of(client):
    return client.scheduler_info(n_workers=-1)["workers"]


def test_tasks_of_joblib_run_in_the_pool_of_the_block(client):
    with client.use("other"), joblib.parallel_config("dask"):
        found = joblib.Parallel()(joblib.delayed(whose)(number) for number in range(300))
    assert set(found) == {"other"}


# Shuffles -----------------------------------------------------------------------------------------


class Places(SchedulerPlugin):
    """Notes the pools of the workers that ran calls."""

    def __init__(self, scheduler):
        self.scheduler, self.tags = scheduler, set()

    def transition(self, key, start, finish, *args, worker=None, **kwargs):
        if (start, finish) == ("processing", "memory") and worker in self.scheduler.workers:
            self.tags |= set(self.scheduler.workers[worker].resources)


@pytest.fixture
def pools_of_calls(session):
    plugin = Places(session.cluster.scheduler)
    session.cluster.scheduler.add_plugin(plugin, name="places")
    yield plugin.tags
    session.cluster.scheduler.remove_plugin("places")


def rechunked(first):
    array = da.from_array(np.arange(first, first + 64).reshape(8, 8), chunks=(8, 2))
    return (array + 1).rechunk((2, 8)).sum(axis=0)


def overlapping(first):
    array = da.from_array(np.arange(first, first + 60.0), chunks=20)
    return array.map_overlap(lambda x: x - x.mean(), depth=3, boundary="none").rechunk(17).sum()


def frame(first, parts=3):
    pandas = pytest.importorskip("pandas")
    dd = pytest.importorskip("dask.dataframe")
    table = pandas.DataFrame({"v": np.arange(300)[::-1] % 101, "w": np.arange(first, first + 300)})
    return dd.from_pandas(table, npartitions=parts)


SHUFFLES = {
    "rechunk": rechunked,
    "map_overlap": overlapping,
    "set_index": lambda first: frame(first).set_index("v").w,
    "shuffle": lambda first: frame(first).shuffle("v", npartitions=2).w.sum(),
    "merge": lambda first: frame(first).merge(frame(first, 2), on="v").w_x.sum(),
    "groupby": lambda first: frame(first).groupby("v").w.sum(split_out=2),
}


def same(one, other):
    one, other = (np.sort(np.asarray(value).ravel()) for value in (one, other))
    assert one.shape == other.shape
    assert np.allclose(one, other)


@pytest.mark.parametrize("make", SHUFFLES.values(), ids=SHUFFLES)
def test_shuffles_stay_in_the_pool(client, pools_of_calls, make):
    with dask.config.set({"array.rechunk.method": "tasks", "dataframe.shuffle.method": "tasks"}):
        expected = [make(first).compute(scheduler="sync") for first in (0, 1)]
    pools_of_calls.clear()
    with dask.config.set({"array.rechunk.method": "p2p"}):
        # Dask computes the divisions of an index when the index is set, hence the annotation.
        with warnings.catch_warnings(), dask.annotate(tag="load"):
            warnings.filterwarnings("ignore", "Dask annotations")
            same(make(0).compute(), expected[0])
        assert pools_of_calls == {"load"}
        graph = make(1)
        pools_of_calls.clear()
        same(graph.compute(tag="other", slots=2), expected[1])
        assert pools_of_calls == {"other"}


def test_a_shuffle_survives_a_pool_that_shrinks(session, client, pools_of_calls, eventually):
    array = da.from_array(np.arange(256).reshape(16, 16), chunks=(16, 1)).map_blocks(slowly)
    with dask.config.set({"array.rechunk.method": "p2p"}):
        future = client.compute(array.rechunk((1, 16)), tag="load")
    eventually(lambda: session.cluster.scheduler.extensions["shuffle"].active_shuffles)
    session.cluster.scale("load", 1)
    try:
        assert future.result(timeout=100).sum() == 255 * 128
        assert pools_of_calls == {"load"}
    finally:
        session.cluster.scale("load", 2)
        client.wait_for_workers(4, timeout=60)


def slowly(block):
    time.sleep(0.05)
    return block


def numbers(*tags):
    """Return an array and a bag whose layers were made with tags, one after the other."""
    with dask.annotate(tag=tags[0]):
        array = da.from_array(np.arange(8) + len(tags), chunks=2) + 1
        bag = db.from_sequence(range(len(tags), 8 + len(tags)), 2)
    for tag in tags[1:]:
        with dask.annotate(tag=tag, slots=2):
            array, bag = array + 1, bag.map(lambda x: x + 1)
    return array, bag


@pytest.mark.parametrize("kind", [0, 1], ids=["array", "bag"])
def test_each_layer_runs_where_its_tag_is(client, pools_of_calls, kind):
    collection = numbers("load", "other")[kind]
    same(collection.compute(), collection.compute(scheduler="sync"))
    assert pools_of_calls == {"load", "other"}
    pools_of_calls.clear()
    collection = numbers("load", "load", "load")[kind]
    same(collection.compute(tag="load"), collection.compute(scheduler="sync"))
    assert pools_of_calls == {"load"}


def test_resources_of_a_layer_are_added_to_the_tag(client, monkeypatch):
    monkeypatch.setattr(explaining, "WAIT_BEFORE_WORD_S", 0.1)
    with dask.annotate(resources={"load": 1}):
        array = da.from_array(np.arange(8), chunks=2)
    with pytest.raises(ClusterError, match="which no worker offers together"):
        array.sum().compute(tag="other")


def test_calls_pinned_to_a_worker_of_another_pool_are_refused(client):
    workers = client.scheduler_info()["workers"]
    address = next(a for a, worker in workers.items() if "load" in worker["resources"])
    with pytest.raises(ClusterError, match=f"is restricted to {address}"):
        client.submit(whose, tag="other", workers=[address]).result(timeout=60)
    assert client.submit(whose, tag="load", workers=[address]).result(timeout=60) == "load"
