"""What a cluster of its own processes tells its clients: empty pools, and its end."""

import logging
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import scalable
from scalable import ClusterError, ScalableClient
from scalable.client.attached import AttachedCluster
from verbs import program, up

WORDS = "for pool 'a': it has no workers; start some with `scalable scale news a=1`"
ENDED = "cluster 'news' has stopped: it was stopped on request"


def nap(seconds):
    threading.Event().wait(seconds)
    return seconds


def test_waiting_clients_learn_of_an_empty_pool_and_of_the_cluster_s_end(place, caplog, eventually):
    place(text=place.text.replace("workers: 2", "workers: 0"))
    up("--name", "news")
    caplog.set_level(logging.WARNING, "scalable")
    first = scalable.connect("news")
    call = first.submit(nap, 0, tag="a")
    eventually(lambda: caplog.text.count(WORDS) == 1)
    # Every client is told, and soon, although the scheduler has logged it a moment ago.
    cluster = AttachedCluster.from_name("news")
    second = ScalableClient(cluster)
    pool = second.pool("a")
    waiting = pool.submit(nap, 0)
    eventually(lambda: caplog.text.count(WORDS) == 2)
    finished, running = second.submit(nap, 0, tag="b"), second.submit(nap, 600, tag="b")
    assert finished.result(timeout=60) == 0
    with ThreadPoolExecutor(4) as threads:
        calls = (call, waiting, running)
        waits = [threads.submit(each.result, 120) for each in calls]
        gathered = threads.submit(second.gather, [running])
        assert program("down", "news", "--yes").returncode == 0
        for wait in (*waits, gathered):
            with pytest.raises(ClusterError, match=ENDED):
                wait.result(timeout=60)
    eventually(lambda: second.status == "closed")
    for late in (finished.result, lambda: second.submit(nap, 0, tag="b").result()):
        with pytest.raises(ClusterError, match=ENDED):
            late()
    with pytest.raises(RuntimeError, match=ENDED):
        pool.submit(nap, 0)
    with pytest.raises(ClusterError, match=ENDED):
        second.pool("a").submit(nap, 0).result(timeout=60)
    for each in (first, second, cluster):
        each.close()
