"""Our client on a scheduler and workers that are Dask's own."""

import dask
import pytest
from distributed import LocalCluster, Scheduler, SpecCluster, Worker

from scalable import ClusterError, ScalableClient


@pytest.fixture(scope="module")
def client():
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": ":0"}
    with LocalCluster(resources={"a": 1}, **options) as cluster, ScalableClient(cluster) as client:
        yield client


def double(x):
    return 2 * x


def test_calls_of_pools(client):
    with client.pool(tag="a") as pool:
        assert list(pool.map(double, range(500))) == [2 * i for i in range(500)]
        future = pool.submit(double, 4)
        assert future.result(timeout=60) == 8
        assert future.profile()["duration_s"] >= 0
    with client.pool() as pool:
        assert list(pool.map(double, range(50))) == [2 * i for i in range(50)]


def test_cancelling_leaves_the_connection_as_it_is(client):
    done = client.submit(double, 1, tag="a")
    client.cancel([client.submit(double, 2, tag="a")])
    assert done.result(timeout=60) == 2
    assert client.submit(double, 3, tag="a").result(timeout=60) == 6


def test_profiles_are_said_to_be_missing(client):
    future = client.submit(double, 1)
    future.result(timeout=60)
    with pytest.raises(ClusterError, match="does not record task profiles"):
        client.profile(future)


def test_shuffles_of_a_tag_stay_with_its_workers():
    array = pytest.importorskip("dask.array")
    options = {"nthreads": 1, "dashboard_address": ":0"}
    workers = {
        "with": {"cls": Worker, "options": options | {"resources": {"a": 1}}},
        "without": {"cls": Worker, "options": options},
    }
    scheduler = {"cls": Scheduler, "options": {"protocol": "inproc", "dashboard_address": ":0"}}
    with (
        SpecCluster(workers=workers, scheduler=scheduler) as cluster,
        ScalableClient(cluster) as client,
        dask.config.set({"array.rechunk.method": "p2p"}),
    ):
        numbers = array.arange(16, chunks=4).reshape(4, 4).rechunk((4, 1)).rechunk((1, 4))
        future = client.compute(numbers.sum(), tag="a")
        assert future.result(timeout=60) == 120


def test_equal_calls_without_pools_are_one_as_in_dask():
    options = {"n_workers": 1, "threads_per_worker": 1, "dashboard_address": ":0"}
    with LocalCluster(processes=False, **options) as cluster, ScalableClient(cluster) as client:
        assert len({client.submit(double, 3).key for _ in range(2)}) == 1
        assert len({future.key for future in client.map(double, [3] * 5)}) == 1
