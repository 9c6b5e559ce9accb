"""PoolCluster on real workers: SpecCluster's examples, and what SpecCluster gets wrong."""

import asyncio
import os
import stat
import tempfile
import time

import psutil
import pytest
from distributed import Client, Event, Nanny, Scheduler, Worker
from distributed.core import Status
from distributed.deploy.spec import ProcessInterface
from distributed.utils_test import inc

from scalable import ClusterError, PoolCluster, ProviderError, ScalableClient
from scalable.clusters import ending
from scalable.errors import NoWorkersError
from scalable.worker.pool_worker import PoolWorker

INPROC = {"cls": Scheduler, "options": {"protocol": "inproc://", "dashboard_address": ":0"}}


def pooled(**pools):
    """A cluster of threads with pools of these sizes, each worker with two slots."""
    cluster = PoolCluster(scheduler=INPROC)
    for tag in pools:
        options = {"nthreads": 2, "resources": {tag: 2}, "memory_limit": 0}
        cluster.add_pool(tag, {"cls": PoolWorker, "options": options}, slots=2)
    cluster.scale(pools)
    return cluster


# The examples of SpecCluster's docstring -------------------------------------------------------


def test_a_specification_with_a_worker_and_a_nanny():
    scheduler = {"cls": Scheduler, "options": {"dashboard_address": ":0"}}
    workers = {
        "my-worker": {"cls": Worker, "options": {"nthreads": 1}},
        "my-nanny": {"cls": Nanny, "options": {"nthreads": 2}},
    }
    with PoolCluster(scheduler=scheduler, workers=workers) as cluster:
        assert cluster.worker_spec == workers
        assert isinstance(cluster.workers["my-worker"], Worker)
        assert isinstance(cluster.workers["my-nanny"], Nanny)
        with Client(cluster) as client:
            info = client.scheduler_info(n_workers=-1)["workers"].values()
            assert {w["name"]: w["nthreads"] for w in info} == {"my-worker": 1, "my-nanny": 2}
            assert client.submit(inc, 1).result(timeout=30) == 2


def test_one_template_scaled_to_three(eventually):
    worker = {"cls": Worker, "options": {}}
    with PoolCluster(worker=worker) as cluster:
        assert cluster.worker_spec == {}
        cluster.scale(3)
        assert cluster.worker_spec == {0: worker, 1: worker, 2: worker}
        cluster.wait_for_workers(3, timeout=60)
        assert cluster.scheduler_address.startswith("tls://127.0.0.1")
        cluster.scale(1)
        eventually(lambda: len(cluster.workers) == 1)
        assert len(cluster.worker_spec) == 1


def test_an_awaited_cluster_has_the_workers_that_are_desired():
    async def run():
        async with PoolCluster(worker={"cls": Worker, "options": {}}, asynchronous=True) as cluster:
            cluster.scale(3)
            await cluster
            cluster.scale(1)
            await cluster
            assert len(cluster.workers) == len(cluster.worker_spec) == 1
            cluster.scale(4)
            await cluster
            await cluster.scale_down(list(cluster.worker_spec)[:2])
            assert len(cluster.workers) == 2
            del cluster.worker_spec[next(iter(cluster.worker_spec))]
            await cluster
            assert len(cluster.workers) == 1

    asyncio.run(run())


def test_an_awaited_cluster_does_not_wait_for_tasks_of_undesired_workers():
    async def run():
        async with (
            PoolCluster(worker={"cls": Worker, "options": {}}, asynchronous=True) as cluster,
            ScalableClient(cluster, asynchronous=True) as client,
        ):
            cluster.scale(2)
            await client.wait_for_workers(2, timeout=60)
            release = Event("release", client=client)
            held = client.map(hold, ["release"] * 2, pure=False)
            while sum(len(w.processing) for w in cluster.scheduler.workers.values()) < 2:
                await asyncio.sleep(0.01)
            cluster.scale(1)
            await asyncio.wait_for(cluster, 20)  # less than the task would take
            assert len(cluster.workers) == 2
            await release.set()
            assert await client.gather(held) == [1, 1]

    asyncio.run(run())


def hold(name):
    Event(name).wait("120s")
    return 1


def test_memory_is_the_second_argument_as_in_dask():
    with PoolCluster(worker={"cls": Worker, "options": {"memory_limit": "1GB"}}) as cluster:
        for arguments, count in [((1, "3GB"), 3), ((0, "1.5 GB"), 2), ((4, 3 * 10**9), 4)]:
            cluster.scale(*arguments)
            assert len(cluster.worker_spec) == count
        with pytest.raises(ValueError, match="nonsense"):
            cluster.scale(1, "nonsense")
        assert len(cluster.worker_spec) == 4


def test_a_changed_specification_is_followed_when_the_cluster_is_awaited():
    async def run():
        worker = {"cls": Worker, "options": {"nthreads": 1}}
        async with PoolCluster(scheduler=INPROC, worker=worker, asynchronous=True) as cluster:
            cluster.worker_spec["extra"] = worker
            await cluster
            assert [ws.name for ws in cluster.scheduler.workers.values()] == ["extra"]
            cluster.scale(2)
            await cluster
            assert len(cluster.scheduler.workers) == 2
            del cluster.worker_spec["extra"]
            deadline = time.monotonic() + 30
            while "extra" in cluster.workers and time.monotonic() < deadline:
                await cluster
                await asyncio.sleep(0.05)
            assert [ws.name for ws in cluster.scheduler.workers.values()] == [0]

    asyncio.run(run())


class MultiWorker(Worker):
    """One entry that brings several workers, as the docstring's does."""

    def __init__(self, *args, processes=2, name=None, **kwargs):
        self.parts = [
            Worker(*args, name=f"{name}-{i}", **kwargs) for i in range(processes)
        ]  # fmt: skip

    @property
    def status(self):
        return self.parts[0].status

    def __await__(self):
        async def started():
            await asyncio.gather(*self.parts)
            return self

        return started().__await__()

    async def close(self):
        await asyncio.gather(*(part.close() for part in self.parts))

    def __del__(self):
        pass

    def __repr__(self):
        return f"<MultiWorker of {len(self.parts)}>"


def test_groups_bring_several_workers_and_are_replaced_when_they_lose_one(eventually, monkeypatch):
    monkeypatch.setattr("scalable.manager.units.LOST_WORKER_GRACE_S", 0.2)
    workers = {
        0: {"cls": MultiWorker, "options": {"processes": 3}, "group": ["-0", "-1", "-2"]},
        1: {"cls": MultiWorker, "options": {"processes": 2}, "group": ["-0", "-1"]},
    }
    with PoolCluster(scheduler=INPROC, workers=workers) as cluster:

        def names():
            return sorted(str(ws.name) for ws in cluster.scheduler.workers.values())

        assert names() == ["0-0", "0-1", "0-2", "1-0", "1-1"]
        first = cluster.workers[0]
        cluster.sync(first.parts[1].close)
        eventually(lambda: cluster.workers.get(0) not in (first, None), "a new group")
        eventually(lambda: names() == ["0-0", "0-1", "0-2", "1-0", "1-1"])
        assert {part.status for part in first.parts} == {Status.closed}


class Job(ProcessInterface):
    """A job as dask-jobqueue's: awaited, closed, and its worker connects when it likes."""

    started, closed = 0, 0

    def __init__(self, scheduler, name=None, **kwargs):
        self.scheduler, self.name = scheduler, name
        super().__init__(scheduler, name)

    async def start(self):
        type(self).started += 1
        self.worker = await Worker(self.scheduler, name=self.name, nthreads=1)
        await super().start()

    async def close(self):
        type(self).closed += 1
        await self.worker.close()
        await super().close()


def test_any_class_that_honours_the_process_interface_is_an_entry(eventually):
    with PoolCluster(scheduler=INPROC, worker={"cls": Job, "options": {}}) as cluster:
        cluster.scale(2)
        cluster.wait_for_workers(2, timeout=60)
        assert Job.started == 2
        cluster.scale(0)
        eventually(lambda: Job.closed == 2)


def test_an_entry_that_cannot_be_made_is_refused_at_once():
    entry = {"cls": Worker, "options": {"no_such_option": 1}}
    with pytest.raises(ProviderError, match="no_such_option"):
        PoolCluster(scheduler=INPROC, workers={"x": entry})


# Pools -----------------------------------------------------------------------------------------


def wait_for(path):
    """Run until a file is there."""
    while not os.path.exists(path):
        time.sleep(0.02)
    return True


def test_scaling_one_pool_touches_no_other(eventually):
    with pooled(gcam=2, **{"gcam-large": 1}) as cluster:
        eventually(lambda: cluster.pools["gcam"].running == 2)
        large = set(cluster.manager.inventory.names("gcam-large"))
        cluster.scale("gcam", 0)
        eventually(lambda: cluster.pools["gcam"].running == 0)
        eventually(lambda: cluster.pools["gcam-large"].running == 1)
        assert set(cluster.manager.inventory.names("gcam-large")) == large
        cluster.scale({"gcam": 1, "gcam-large": 2})
        eventually(
            lambda: (cluster.pools["gcam"].running, cluster.pools["gcam-large"].running) == (1, 2)
        )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nowhere", 2), "no pool 'nowhere'; known pools: .*'a'"),
        (("a",), r"scale\('a'\) has no number of workers"),
        (("a", -1), "cannot have -1 workers"),
        (({"a": 1, "b": "two"},), "cannot have 'two' workers"),
        ((3,), "no pool was named"),
    ],
)
def test_a_wrong_request_says_what_is_wrong_and_changes_nothing(arguments, message):
    with pooled(a=1, b=1) as cluster:
        with pytest.raises(ClusterError, match=message):
            cluster.scale(*arguments)
        assert {tag: pool.wanted for tag, pool in cluster.pools.items()} == {"a": 1, "b": 1}


def test_adapting_to_no_range_is_refused():
    with (
        pooled(a=0) as cluster,
        pytest.raises(ClusterError, match="minimum 3 is greater than maximum 2"),
    ):
        cluster.adapt("a", minimum=3, maximum=2)


# Losing workers ----------------------------------------------------------------------------------


class Doomed(PoolWorker):
    """A worker that never comes up."""

    made = 0

    async def start_unsafe(self):
        type(self).made += 1
        raise RuntimeError("the disk is on fire")


def test_a_crash_loop_ends_and_says_why(eventually, monkeypatch, caplog):
    monkeypatch.setattr("scalable.manager.pools.backoff_s", lambda _: 0.0)
    monkeypatch.setattr("scalable.manager.reconciler.INTERVAL_S", 0.05)
    monkeypatch.setattr("scalable.scheduler.explaining.WAIT_BEFORE_WORD_S", 0.1)
    Doomed.made = 0
    cluster = PoolCluster(scheduler=INPROC)
    with cluster, ScalableClient(cluster) as client:
        cluster.add_pool("a", {"cls": Doomed, "options": {"resources": {"a": 1}}})
        future = client.submit(inc, 1, tag="a")
        cluster.scale("a", 1)
        reason = eventually(lambda: cluster.pools["a"].reason)
        assert "the disk is on fire" in reason
        made = Doomed.made
        assert made == 5
        losses = [m for m in caplog.messages if "was lost" in m]  # the reason once
        assert ["the disk is on fire" in loss for loss in losses] == [True] + [False] * 4
        with pytest.raises(ClusterError, match="pool 'a' is degraded"):
            future.result(timeout=60)
        results = client.pool(tag="a").imap(inc, range(200))  # all fail together
        for _ in range(200):
            with pytest.raises(NoWorkersError, match="pool 'a' is degraded"):
                next(results)
        assert Doomed.made == made
        assert cluster.pools["a"].failed == 1
        cluster.scale("a", 1)  # asking again tries again
        eventually(lambda: Doomed.made > made)


# Scaling down ------------------------------------------------------------------------------------


def draw(directory, i):
    """Leaves a file for each start; run again it would return another value."""
    tempfile.mkstemp(dir=directory, prefix=f"{i}-")
    time.sleep(0.05)
    return os.urandom(1000)


def test_scaling_down_loses_no_result_and_runs_nothing_twice(eventually, tmp_path):
    with pooled(a=3) as cluster, ScalableClient(cluster) as client:
        client.wait_for_workers(3, timeout=60)
        futures = client.map(draw, [str(tmp_path)] * 40, range(40), tag="a")
        eventually(lambda: sum(f.done() for f in futures) >= 8)
        before = {f.key: f.result() for f in futures if f.done()}
        cluster.scale("a", 1)
        results = {f.key: f.result(timeout=60) for f in futures}
        eventually(lambda: len(cluster.scheduler.workers) == 1)
        assert {f.key: f.result(timeout=60) for f in futures} == results
        assert {key: results[key] for key in before} == before
        starts = sorted(int(path.name.split("-")[0]) for path in tmp_path.iterdir())
        assert starts == list(range(40))


def test_a_result_that_no_other_worker_can_take_keeps_its_worker(eventually):
    with pooled(a=1) as cluster, ScalableClient(cluster) as client:
        future = client.submit(os.urandom, 10, tag="a")
        value = future.result(timeout=30)
        cluster.scale("a", 0)
        eventually(lambda: cluster.pools["a"].draining == 1)
        time.sleep(0.2)  # it is looked at several times
        assert future.result(timeout=30) == value
        assert cluster.pools["a"].draining == 1
        del future
        eventually(lambda: cluster.pools["a"].draining == 0)


def test_scaling_up_again_takes_back_a_worker_that_is_being_emptied(eventually, tmp_path):
    release = tmp_path / "release"
    with pooled(a=1) as cluster, ScalableClient(cluster) as client:
        client.wait_for_workers(1, timeout=60)
        (name,) = cluster.manager.inventory.names("a")
        future = client.submit(wait_for, str(release), tag="a")
        eventually(lambda: any(ws.processing for ws in cluster.scheduler.workers.values()))
        cluster.scale("a", 0)
        eventually(lambda: cluster.pools["a"].draining == 1)
        cluster.scale("a", 1)
        eventually(lambda: cluster.pools["a"].running == 1)
        assert client.submit(inc, 1, tag="a").result(timeout=30) == 2
        release.touch()
        assert future.result(timeout=30) is True
        assert cluster.manager.inventory.names("a") == [name]


# Classes of others and TLS ----------------------------------------------------------------------


class Remote(ProcessInterface):
    """Like a job of dask-jobqueue: it starts its worker from what it was given, elsewhere."""

    given = None

    def __init__(self, scheduler=None, name=None, nthreads=1, **base_class_kwargs):
        self.scheduler, self.name, self.options = scheduler, name, base_class_kwargs
        super().__init__(scheduler, name)

    async def start(self):
        type(self).given = self.options["security"]
        self.worker = await Worker(self.scheduler, name=self.name, **self.options)
        await super().start()

    async def close(self):
        await self.worker.close()
        await super().close()


class Deaf(ProcessInterface):
    def __init__(self, scheduler=None, name=None):
        super().__init__(scheduler, name)


def test_classes_of_others_are_given_the_credentials_as_private_files(monkeypatch):
    monkeypatch.setattr(ending, "FRESH_S", -1.0)
    with PoolCluster(workers={"one": {"cls": Remote, "options": {"nthreads": 1}}}) as cluster:
        cluster.wait_for_workers(1, timeout=60)
        security = Remote.given
        for role in ("worker", "client"):
            for key, path in security.get_tls_config_for_role(role).items():
                if key != "ciphers":
                    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
                    assert stat.S_IMODE(os.stat(os.path.dirname(path)).st_mode) == 0o700
        assert not [left for left in ending.prune(dry_run=True) if "credentials" in str(left)]
    assert not os.path.exists(os.path.dirname(security.tls_worker_key))


def test_a_class_that_takes_no_credentials_is_refused_at_once():
    with pytest.raises(ProviderError, match="Deaf.*could never connect.*takes no security="):
        PoolCluster(workers={"one": {"cls": Deaf}})
    with PoolCluster(scheduler=INPROC, workers={"one": {"cls": Deaf}}) as cluster:
        assert isinstance(cluster.workers["one"], Deaf)


# Units that come and go quickly -----------------------------------------------------------------


def test_workers_that_are_ended_while_they_start_leave_no_process(eventually):
    before = set(psutil.Process().children(recursive=True))
    with PoolCluster(worker={"cls": Nanny, "options": {"nthreads": 1}}) as cluster:
        cluster.scale(1)
        time.sleep(0.2)
        cluster.scale(0)
        eventually(lambda: not cluster.workers and not cluster.scheduler.workers)
        cluster.scale(1)
        time.sleep(0.2)
    assert not [child for child in workers_since(before) if child.is_running()]


def workers_since(before):
    new = set(psutil.Process().children(recursive=True)) - before
    return [child for child in new if "resource_tracker" not in " ".join(child.cmdline())]


def test_scaling_up_just_after_scaling_down_loses_no_worker(eventually, caplog):
    with pooled(a=2) as cluster:
        cluster.wait_for_workers(2, timeout=60)
        for wait_s in (0.0, 0.1, 0.2):
            cluster.scale("a", 1)
            time.sleep(wait_s)
            cluster.scale("a", 2)
            eventually(lambda: cluster.pools["a"].running == len(cluster.scheduler.workers) == 2)
    assert "lost" not in caplog.text
