"""The surface that clusters of pools inherit from Dask's `SpecCluster`, name by name."""

import asyncio
import contextlib
import math
import traceback

import dask
import pytest
from distributed import Client, Scheduler
from distributed.deploy.adaptive import Adaptive
from distributed.deploy.spec import SpecCluster
from distributed.diagnostics.plugin import NannyPlugin, WorkerPlugin

from scalable import ClusterError, PoolCluster, ScalableClient
from scalable.worker.pool_worker import PoolWorker

INPROC = {"cls": Scheduler, "options": {"protocol": "inproc://", "dashboard_address": ":0"}}


def entry(tag=None, **options):
    resources = {tag: 1} if tag else {}
    options = {"nthreads": 2, "memory_limit": "1 GiB", "resources": resources, **options}
    return {"cls": PoolWorker, "options": options}


@contextlib.contextmanager
def cluster_of(*tags, worker=None, cls=PoolCluster, **kwargs):
    with cls(scheduler=INPROC, worker=worker, **kwargs) as cluster:
        for tag in tags:
            cluster.add_pool(tag, entry(tag))
        yield cluster


@pytest.fixture(scope="module")
def cluster():
    with cluster_of("a", "b", worker=entry()) as cluster:
        cluster.scale({"a": 1, "b": 1})
        cluster.wait_for_workers(2, timeout=60)
        yield cluster


def counts(cluster):
    return {tag: pool.wanted for tag, pool in cluster.pools.items()}


def scaled_up(cluster):
    cluster.scale_up(1)
    assert len(cluster.manager.inventory.names("")) == 1
    cluster.scale_up("a", 2)
    assert counts(cluster) == {"a": 2, "b": 1}
    cluster.scale_up({"": 0, "a": 1})


def scaled_down(cluster):
    cluster.scale("a", 2)
    name = cluster.manager.inventory.names("a")[-1]
    cluster.sync(cluster.scale_down, [name])
    assert counts(cluster) == {"a": 1, "b": 1}


def new_worker(cluster):
    ((name, made),) = cluster.new_worker_spec().items()
    assert (name in cluster.worker_spec, made) == (False, entry())


def adapted(cluster):
    cluster.adapt("a", 1, 1)
    cluster.scale("a", 1)


def client_of(cluster):
    with cluster.get_client() as client:
        assert isinstance(client, ScalableClient)
        assert client.submit(len, "ab", tag="a").result(timeout=30) == 2


def refused(call, words):
    with pytest.raises(ClusterError, match=words):
        call()


def units_are_named(cluster):
    names = {str(ws.name) for ws in cluster.scheduler.workers.values()}
    assert names >= set(map(str, cluster.requested)) | set(map(str, cluster.observed)) - {""}
    assert set(map(str, cluster.plan)) >= set(cluster.manager.inventory.names("a"))


#: Name -> what it does on a cluster of pools. Attributes that only have to be there have None.
SURFACE = {
    "adapt": adapted,
    "asynchronous": None,
    "called_from_running_loop": None,
    "close": None,  # the fixture's last step
    "dashboard_link": lambda cluster: str(cluster.dashboard_link),
    "from_name": lambda cluster: refused(lambda: cluster.from_name("nobody"), "nobody"),
    "get_client": client_of,
    "get_logs": lambda cluster: {"Scheduler"} < set(cluster.get_logs()) or pytest.fail("no logs"),
    "loop": None,
    "name": None,
    "new_spec": None,
    "new_worker_spec": new_worker,
    "observed": units_are_named,
    "periodic_callbacks": None,
    "plan": units_are_named,
    "quiet": None,
    "requested": units_are_named,
    "scale": lambda cluster: cluster.scale({"a": 1, "b": 1}),
    "scale_down": scaled_down,
    "scale_up": scaled_up,
    "scheduler": None,
    "scheduler_address": None,
    "scheduler_comm": None,
    "scheduler_info": lambda cluster: cluster.scheduler_info["workers"],
    "scheduler_spec": None,
    "security": None,
    "shutdown_on_close": None,
    "shutdown_scheduler": None,
    "status": None,
    "sync": lambda cluster: cluster.sync(asyncio.sleep, 0),
    "wait_for_workers": lambda cluster: cluster.wait_for_workers(1, timeout=30),
    "worker_spec": lambda cluster: cluster.worker_spec.keys(),
    "workers": lambda cluster: cluster.workers.keys(),
}


def test_the_table_has_every_public_name_of_dasks_cluster():
    with SpecCluster(scheduler=INPROC) as theirs:
        assert public(theirs) == SURFACE.keys()


def public(thing):
    return {name for name in dir(thing) if not name.startswith("_")}


def test_public_names_that_only_pool_clusters_have_are_pinned(cluster):
    assert public(cluster) - SURFACE.keys() == {
        "add_pool",
        "add_pools",
        "align",
        "apply",
        "manager",
        "on_event",
        "on_scaling",
        "overview",
        "pools",
    }


def test_public_names_that_only_our_clients_have_are_pinned(cluster):
    with Client(cluster, set_as_default=False) as theirs, cluster.get_client() as ours:
        assert public(ours) - public(theirs) == {
            "debug",
            "executor",
            "explain",
            "get_logs",
            "pool",
            "send",
            "show_output",
            "starmap",
            "sweep",
            "sync_code",
            "use",
            "worker_count",
        }


@pytest.mark.parametrize("name", SURFACE)
def test_each_inherited_name_works_on_pools(cluster, eventually, name):
    use = SURFACE[name] or (lambda cluster: getattr(cluster, name))
    use(cluster)
    cluster.scale({"a": 1, "b": 1})
    eventually(lambda: sorted(pool.running for pool in cluster.pools.values()) == [1, 1])
    assert not any(pool.degraded for pool in cluster.pools.values())


# New workers --------------------------------------------------------------------------------------


class Named(PoolCluster):
    def _new_worker_name(self, worker_number):
        return f"mine-{worker_number}"


class Odd(PoolCluster):
    def new_worker_spec(self):
        ((name, made),) = super().new_worker_spec().items()
        options = {**made["options"], "nthreads": 1 + name % 2, "name": f"odd-{name}"}
        return {f"odd-{name}": {**made, "options": options}}


@pytest.mark.parametrize(("cls", "word"), [(Named, "mine"), (Odd, "odd")])
def test_names_and_entries_of_a_subclass_are_honoured(eventually, cls, word):
    with cluster_of(worker=entry(), cls=cls) as cluster:
        cluster.scale(2)
        assert set(cluster.worker_spec) == {f"{word}-0", f"{word}-1"}
        cluster.wait_for_workers(2, timeout=60)
        if cls is Odd:
            assert sorted(ws.nthreads for ws in cluster.scheduler.workers.values()) == [1, 2]
        cluster.sync(cluster.workers[f"{word}-1"].close)
        eventually(lambda: set(cluster.observed) == {f"{word}-0", f"{word}-2"})


def test_a_cluster_without_a_template_has_no_new_worker():
    with cluster_of("a") as cluster:
        refused(cluster.new_worker_spec, "has no template")
        refused(lambda: cluster.scale({"": 1}), "^the pool without a tag has no template")


# Plugins ------------------------------------------------------------------------------------------


class OfNannies(NannyPlugin):
    pass


class OfWorkers(WorkerPlugin):
    def setup(self, worker):
        worker.was_set_up = True


def was_set_up(dask_worker):
    return dask_worker.was_set_up


def test_plugins_of_nannies_are_refused_where_there_are_none(caplog):
    with PoolCluster() as cluster, ScalableClient(cluster) as client:
        cluster.add_pool("a", entry("a"))
        client.register_plugin(OfNannies())  # the cluster may get workers with nannies
        assert "OfNannies has no effect: the workers of this cluster have no" in caplog.text
        cluster.scale("a", 1)
        cluster.wait_for_workers(1, timeout=60)
        refused(lambda: client.register_plugin(OfNannies()), "use a WorkerPlugin")
        client.register_plugin(OfWorkers())
        assert list(client.run(was_set_up).values()) == [True]


# adapt --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "bounds"),
    [
        ({"minimum": 1, "maximum": math.inf}, (1, None)),
        ({"minimum_cores": 3, "maximum_cores": 7}, (2, 3)),
        ({"minimum_memory": "1500 MiB", "maximum_memory": "3.5 GiB"}, (2, 3)),
        ({"maximum": 2, "maximum_memory": "8 GiB", "interval": "500ms", "wait_count": 3}, (0, 2)),
        ({"target_duration": "5s"}, (0, None)),
    ],
    ids=str,
)
def test_keywords_of_dasks_adapt(cluster, asked, bounds):
    adaptive = cluster.adapt("a", **asked)
    assert (adaptive.minimum, adaptive.maximum) == bounds
    target = cluster.sync(adaptive.target)
    assert cluster.sync(adaptive.recommendations, target)["status"] in ("same", "up", "down")
    assert list(adaptive.log) == list(adaptive.log)
    assert cluster.adapt("a", enabled=False) is None


def test_clusters_take_durations_as_strings():
    with cluster_of(start_timeout="5 min") as cluster:
        assert cluster.manager.reconciler._start_timeout == 300
        cluster.add_pool("c", entry("c"), walltime_s="1h", task_s="90s")
        pool = cluster.manager.inventory.pool("c")
        assert (pool.walltime_s, pool.task_s) == (3600, 90)
        with pytest.raises(ValueError, match="walltime_s='long' is not a duration"):
            cluster.add_pool("d", entry("d"), walltime_s="long")
    with pytest.raises(ValueError, match="start_timeout='soon' is not a duration"):
        PoolCluster(start_timeout="soon")


def test_what_adapt_cannot_do_is_refused(cluster):
    refused(lambda: cluster.adapt(Adaptive, tag="a"), "Adaptive=Adaptive.*counts all workers alike")
    refused(lambda: cluster.adapt("a", Adaptive=Adaptive), "this cluster has the pools 'a', 'b'")
    refused(lambda: cluster.adapt("a", target_duration="0s"), "target_duration")
    refused(lambda: cluster.adapt("a", target_duration="soon"), "target_duration='soon'")
    refused(lambda: cluster.adapt("a", target_duration="5s", policy=object()), "not both")
    with cluster_of() as empty:
        refused(lambda: empty.adapt(minimum_cores=2), "minimum_cores")
    with pytest.raises(TypeError, match="nonsense"):
        cluster.adapt("a", nonsense=1)


def test_workers_are_removed_when_enough_decisions_found_them_superfluous(eventually):
    with cluster_of("a") as cluster, ScalableClient(cluster) as client:
        adaptive = cluster.adapt("a", 0, 2, interval="50ms", wait_count=4, target_duration="100ms")
        assert client.gather(client.map(abs, range(20), tag="a")) == list(range(20))
        eventually(lambda: cluster.pools["a"].wanted == 0)
        changes = [change["status"] for _, change in adaptive.log]
        assert (changes[0], changes[-1]) == ("up", "down")


def test_a_class_like_dasks_adapts_the_only_pool(eventually):
    with cluster_of("a") as cluster, ScalableClient(cluster) as client:
        adaptive = cluster.adapt(Adaptive=Adaptive, minimum=1, maximum=2, interval="50ms")
        assert isinstance(adaptive, Adaptive)
        eventually(lambda: cluster.pools["a"].running == 1)
        assert client.submit(abs, -1, tag="a").result(timeout=30) == 1
        assert cluster.adapt(enabled=False) is None
        assert adaptive.state == "stopped"


# Source and tracebacks ----------------------------------------------------------------------------


def fail_in_the_middle(number):
    raise LookupError(number)


@pytest.mark.parametrize("tag", ["a", None])
def test_recorded_source_and_tracebacks_are_those_of_the_user(cluster, tag):
    cluster.scale({"a": 1, "b": 1})  # the adaptive tests may have left fewer
    with (
        cluster.get_client() as client,
        dask.config.set({"distributed.diagnostics.computations.nframes": 1}),
    ):
        for send in (
            lambda: client.submit(fail_in_the_middle, 1, tag=tag),
            lambda: client.map(fail_in_the_middle, [2], tag=tag)[0],
            lambda: client.compute(dask.delayed(fail_in_the_middle)(3), tag=tag),
        ):
            future = send()
            with pytest.raises(LookupError) as raised:
                future.result(timeout=30)
            files = [frame.filename for frame in traceback.extract_tb(raised.value.__traceback__)]
            assert not [name for name in files[1:-1] if "scalable/client" in name]
            code = list(cluster.scheduler.computations[-1].code)
            assert {source.filename for (source,) in code} == {__file__}
