"""Many clients, clusters and killed workers on one store of results."""

import os
import random
import signal
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import dask
import pytest
from distributed import LocalCluster

from scalable import ScalableClient
from scalable.cache.key import CallKey, KeyOptions
from scalable.cache.store import ResultStore
from scalable.model.cache_settings import CacheSettings

OPTIONS = KeyOptions(ignore=("log",))


def noted(x, log):
    """Note that the call runs: one write of a few bytes, which no other process interrupts."""
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND)
    os.write(descriptor, f"{x}\n".encode())
    os.close(descriptor)


def napping(x, log):
    noted(x, log)
    time.sleep(0.003)
    return {"value": x * 7}


def wide(x, log):
    noted(x, log)
    return bytes([x % 251]) * (400_000 + x)


def times_run(log):
    return Counter(map(int, log.read_text().split()))


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "log"
    path.touch()
    return path


def whole_results(path):
    """Return all results of a store, or fail if one cannot be read."""
    store = ResultStore(path)
    entries = [(one.key, store.described(one)) for one in store.stored()]
    keys = [CallKey(key, entry.parts, entry.function) for key, entry in entries]
    return [store.get(key).value() for key in keys]


def clusters(stack, number):
    return [
        stack.enter_context(LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=":0"))
        for _ in range(number)
    ]


def computed_by_four_clients(path, log, count):
    """Let two clients of each of two clusters ask for overlapping parts of the same calls."""
    share = count * 2 // 5
    with ExitStack() as stack:
        made = clusters(stack, 2) * 2
        users = [
            stack.enter_context(
                ScalableClient(c, remembering=CacheSettings(str(path)), set_as_default=False)
            )
            for c in made
        ]
        begin = threading.Barrier(len(users))

        def ask(number):
            first = (count - share) * number // 3
            asked = list(range(first, first + share))
            random.Random(number).shuffle(asked)
            begin.wait(timeout=60)
            futures = users[number].map(napping, asked, [str(log)] * len(asked), cache=OPTIONS)
            return dict(zip(asked, users[number].gather(futures), strict=True))

        with ThreadPoolExecutor(len(users)) as threads:
            return list(threads.map(ask, range(len(users))))


@pytest.mark.parametrize("count", [100, pytest.param(10_000, marks=pytest.mark.slow)])
@pytest.mark.timeout(900)
def test_four_clients_of_two_clusters_share_results(tmp_path, log, count):
    found = computed_by_four_clients(tmp_path / "results", log, count)
    for results in found:
        assert all(result == {"value": x * 7} for x, result in results.items())
    assert set().union(*found) == set(range(count))
    runs = times_run(log)
    assert set(runs) == set(range(count))
    assert max(runs.values()) <= 2  # once for each cluster, if both ran it at the same time
    assert len(whole_results(tmp_path / "results")) == count


def test_workers_that_are_killed_while_they_write_harm_no_result(tmp_path, log):
    chance, remembering = random.Random(11), CacheSettings(str(tmp_path / "results"))
    asked = list(range(60))
    # A call may lose its worker more often than Dask allows by default.
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 100}),
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster,
        ScalableClient(cluster, remembering=remembering) as client,
    ):
        futures = client.map(wide, asked, [str(log)] * len(asked), cache=OPTIONS)
        for _ in range(2):
            before = len(log.read_text())
            while len(log.read_text()) < before + chance.randrange(20, 40):
                pass_time()
            pid = chance.choice([n.pid for n in cluster.workers.values() if n.pid])
            os.kill(pid, signal.SIGKILL)
        assert [set(result) for result in client.gather(futures)] == [{x % 251} for x in asked]
    runs = times_run(log)
    assert len(whole_results(tmp_path / "results")) == len(asked)
    log.write_text("")
    with (
        LocalCluster(processes=False, n_workers=1, dashboard_address=":0") as cluster,
        ScalableClient(cluster, remembering=remembering) as client,
    ):
        again = client.map(wide, asked, [str(log)] * len(asked), cache=OPTIONS)
        assert [len(result) for result in client.gather(again)] == [400_000 + x for x in asked]
    assert not times_run(log)
    assert set(runs) == set(asked)


def pass_time():
    threading.Event().wait(0.005)
