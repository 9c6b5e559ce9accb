"""What policies are told of pools: threads on a scheduler in this process."""

import threading
import time
from collections import Counter

import pytest
from distributed import Scheduler

from scalable import PoolCluster, ScalableClient
from scalable.scaling.pool_policy import PoolDecision
from scalable.scheduler.adaptation import Workload
from scalable.scheduler.task_log import TaskLog
from scalable.worker.pool_worker import PoolWorker

INPROC = {"cls": Scheduler, "options": {"protocol": "inproc://", "dashboard_address": ":0"}}
GATE = threading.Event()


def workload_of(scheduler):
    """Return the workload that listens to a scheduler's ledger; None before pools adapt."""
    listeners = TaskLog.of(scheduler)._listeners
    return next((known for known in listeners if isinstance(known, Workload)), None)


class Told:
    """Keeps what it is told, and wants what there is."""

    def __init__(self, workers=None):
        self.views = []
        self.workers = workers

    def decide(self, view, model):
        self.views.append(view)
        return PoolDecision(view.wanted if self.workers is None else self.workers, "as told")


@pytest.fixture
def cluster():
    GATE.clear()
    with PoolCluster(scheduler=INPROC) as made:
        for tag in "ab":
            options = {"nthreads": 1, "resources": {tag: 1}, "memory_limit": 0}
            made.add_pool(tag, {"cls": PoolWorker, "options": options})
        yield made
        GATE.set()


def held(_=None, *, seconds=0):
    GATE.wait(60)
    time.sleep(seconds)


def quick(*_):
    return b"x" * 1000


def test_a_view_says_what_runs_waits_and_comes(cluster, eventually):
    cluster.scale({"a": 2, "b": 1})
    with ScalableClient(cluster) as client:
        eventually(lambda: client.worker_count() == 3)
        told, other = Told(), Told()
        cluster.manager.controller.adaptation.follow({}, expectations={"hold": ("a", 30.0, None)})
        cluster.adapt("a", 0, 7, interval=0.05, policy=told)
        cluster.adapt("b", 0, 7, interval=0.05, policy=other)
        futures = client.map(held, range(7), tag="a", task="hold")
        last = client.submit(quick, *futures, tag="b")

        def whole():
            view = told.views[-1] if told.views else None
            running = view and sum(map(len, view.running.values()))
            return view if running == 2 and view.graph else None

        view = eventually(whole, "two tasks run, and another needs all of them")
        assert (view.minimum, view.maximum, view.slots, view.wanted) == (0, 7, 1, 2)
        assert (view.busy, view.idle, view.arriving) == (2, 0, [])
        ((kind, queued),) = view.queued.items()
        assert (kind[:2], queued) == (("a", "hold"), 5)
        assert view.submitted == 7
        eventually(lambda: other.views[-1].coming)
        ((_, kind, count),) = other.views[-1].coming
        assert (kind[:2], count) == (("b", "quick"), 1)
        assert (other.views[-1].busy, other.views[-1].idle) == (0, 1)
        before = max(told.views[-1].running[next(iter(told.views[-1].running))])
        eventually(lambda: max(next(iter(told.views[-1].running.values()))) > before + 1)
        GATE.set()
        last.result(timeout=60)
        eventually(lambda: not told.views[-1].queued and not told.views[-1].running)
        assert (told.views[-1].idle, told.views[-1].graph) == (2, False)


def test_the_counts_agree_with_the_scheduler(cluster, eventually):
    """However calls end: done, failed, cancelled, with their worker, or run again."""
    cluster.scale({"a": 2, "b": 1})
    with ScalableClient(cluster) as client:
        eventually(lambda: client.worker_count() == 3)
        cluster.adapt("a", 0, 7, policy=Told())
        eventually(lambda: workload_of(cluster.scheduler))
        done = client.map(quick, range(20), tag="a")
        client.gather(done)
        worker = next(name for name in cluster.workers if str(name).startswith("a-"))
        cluster.sync(cluster.workers[worker].close)  # its results are made again elsewhere
        eventually(lambda: client.worker_count("a") == 2)
        client.gather(done)
        failing = client.map(lambda i: 1 / 0, range(5), tag="b")
        eventually(lambda: all(f.status == "error" for f in failing))
        client.retry(failing[:2])
        eventually(lambda: all(f.status == "error" for f in failing))
        waiting = client.map(held, range(9), tag="a")
        after = [client.submit(quick, one, other, tag="b") for one in waiting for other in done[:2]]
        client.cancel(waiting[:4])
        eventually(lambda: all(future.cancelled() for future in after[:8]))

        def compare():
            scheduler = cluster.scheduler
            counted = workload_of(scheduler)
            walked = {"a": Counter(), "b": Counter()}
            for task in scheduler.tasks.values():
                if task.state in ("processing", "queued", "no-worker"):
                    walked[next(iter(task.resource_restrictions))][task.prefix.name] += 1
            seen = {tag: Counter() for tag in walked}
            for tag, kinds in counted.ready_calls.items():
                for kind, count in kinds.items():
                    seen[tag][kind.task] += count
            assert seen == walked
            blocked = {t.key for t in scheduler.tasks.values() if t.state == "waiting"}
            assert counted._blocked.keys() == blocked
            return walked

        async def compared():
            return compare()

        assert cluster.sync(compared)["a"]["held"] == 5
        GATE.set()
        client.gather(after[8:])
        eventually(lambda: not any(cluster.sync(compared).values()))


def test_starts_are_learned(cluster, eventually):
    told = Told(workers=2)
    cluster.adapt("a", 0, 2, interval=0.02, policy=told)
    eventually(lambda: told.views and told.views[-1].idle == 2)
    assert any(view.arriving for view in told.views)
    first, last = told.views[0], told.views[-1]
    assert first.startup_s == 1.0
    assert 0 < last.startup_s != 1.0
    assert last.billed_startup_s == last.startup_s


def test_busy_workers_stay_whatever_a_policy_says(cluster, eventually):
    cluster.scale("a", 3)
    with ScalableClient(cluster) as client:
        eventually(lambda: client.worker_count("a") == 3)
        futures = client.map(held, range(2), tag="a")
        eventually(lambda: sum(len(w.processing) for w in cluster.scheduler.workers.values()) == 2)
        told = Told(workers=0)
        cluster.adapt("a", 0, 3, interval=0.05, policy=told)
        eventually(lambda: client.worker_count("a") == 2)
        eventually(lambda: len(told.views) > 20)
        assert cluster.pools["a"].wanted == 2
        GATE.set()
        client.gather(futures)
        del futures
        eventually(lambda: client.worker_count("a") == 0)
