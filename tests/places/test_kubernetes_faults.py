"""Faults of a Kubernetes cluster while a session runs on it: one session for all of them."""

import asyncio
import contextlib
import importlib
import json

import pytest

from scalable import ScalableSession
from scalable.protocol.failures import OutOfMemory
from scalable.providers.kubernetes.api import KubernetesApi, Resource

pytest.importorskip("kubernetes_asyncio")

MANIFEST = """
version: 1
project: {name: storm}
targets:
  k:
    provider: kubernetes
    image: site/scalable:1
    mounts: {"hostpath://SHARED": /shared}
components:
  crops: {cpus: 1, memory: 500M, workers: 2}
  small: {cpus: 1, memory: 250M, workers: 0}
  ghosts: {cpus: 1, memory: 250M, workers: 0, image: "nowhere/ghost:1"}
"""
#: A module of the workflow. Calls write a line into a shared file when they begin and when they end.
WORK = """
import os
import time


def note(line):
    with open("/shared/notes", "a") as file:
        file.write(line + chr(10))


def where():
    return os.uname().nodename


def slow(key, seconds):
    note(f"begin {key} {where()}")
    time.sleep(seconds)
    note(f"end {key} {where()}")
    return key


def hog():
    from scalable.worker import process_worker as memory

    memory.TERMINATE_FRACTION = 1e9  # the kubelet is faster than the worker's own watch
    note("begin hog")
    kept = b"x" * 400_000_000
    time.sleep(60)
    return len(kept)
"""
PODS = Resource("pods", "default")


def ask(bed, coroutine_function, user="admin"):
    """Run a coroutine function with a connection of a user; return its result."""

    async def run():
        api = KubernetesApi(None)
        try:
            return await coroutine_function(api)
        finally:
            await api.close()

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KUBECONFIG", str(bed.kubeconfig(user)))
        return asyncio.run(run())


def create(bed, plural, body, group=""):
    resource = Resource(plural, "default", group)
    return ask(bed, lambda api: api.create(resource, json.dumps(body).encode()))


def delete(bed, plural, name, group=""):
    return ask(bed, lambda api: api.delete(Resource(plural, "default", group), name))


def pods_of(bed, cluster, *phases):
    """Names of the pods of a cluster in some phases; by default those that have not ended."""

    async def look(api):
        selector = {"labelSelector": f"scalable/cluster={cluster}"}
        found = await api.request("GET", PODS, query=selector)
        return {pod["metadata"]["name"]: pod for pod in found["items"]}

    return {
        name
        for name, pod in ask(bed, look).items()
        if pod["status"].get("phase", "Pending") in (phases or ("Pending", "Running"))
    }


@contextlib.contextmanager
def running(directory, kubeconfig, manifest=MANIFEST, workers=2):
    """Run a session from a manifest in a directory."""
    (directory / "m.yaml").write_text(manifest.replace("SHARED", str(directory / "shared")))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KUBECONFIG", str(kubeconfig))
        session = ScalableSession.from_yaml(directory / "m.yaml", target="k")
        try:
            session.start().wait_for_workers(workers, timeout=120)
            yield session
        finally:
            session.close()


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A directory with the workflow's module and the files that the pods share."""
    directory = tmp_path_factory.mktemp("storm")
    (directory / "shared").mkdir()
    (directory / "storm_work.py").write_text(WORK)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)
        patch.syspath_prepend(directory)
        yield directory


@pytest.fixture(scope="module")
def work(place):
    return importlib.import_module("storm_work")


@pytest.fixture(scope="module")
def session(place, kubernetes_bed):
    with running(place, kubernetes_bed.kubeconfig()) as session:
        yield session


@pytest.fixture
def notes(place):
    """Lines that calls have written during the test."""
    file = place / "shared" / "notes"
    file.write_text("")
    return lambda: file.read_text().splitlines()


@pytest.fixture
def calm(session, kubernetes_bed, eventually):
    """Make the session as it was planned; return the names of its workers' pods."""
    eventually(lambda: status(session) and session.client.status == "running")
    planned = {"crops": 2, "small": 0, "ghosts": 0}
    if {tag: pool.wanted for tag, pool in status(session).items()} != planned:
        session.scale(planned)

    def there():
        pools = status(session)
        return pools and all(
            pools[tag].running == count == len(names(session, tag))
            for tag, count in planned.items()
        )

    eventually(there)
    assert session.cluster.status.name == "running"
    return names(session)


def status(session):
    """The pools; empty while the scheduler cannot be asked."""
    try:
        return session.cluster.pools
    except OSError:
        return {}


def names(session, tag="crops"):
    """Names of a pool's pods."""
    pods = dict(session.cluster.site.launcher._names)
    return sorted(pod for unit, pod in pods.items() if unit.startswith(f"{tag}-"))


def ran(lines, word="begin"):
    """How often each call began."""
    keys = [line.split()[1] for line in lines if line.startswith(word)]
    return {key: keys.count(key) for key in keys}


# The API server -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [3, pytest.param(30, marks=pytest.mark.slow)])
def test_workers_and_their_calls_go_on_while_the_api_server_is_down(
    session, calm, work, notes, kubernetes_bed, eventually, seconds
):
    cluster = session.cluster.site.frame.cluster_id
    calls = [
        session.client.submit(work.slow, f"c{n}", seconds + 1, tag="crops", pure=False)
        for n in range(2)
    ]
    eventually(lambda: len(notes()) == 2)
    kubernetes_bed.requests(reset=True)
    kubernetes_bed.down(seconds)
    eventually(lambda: len(notes()) == 4)
    del calls
    assert ran(notes()) == ran(notes(), "end") == {"c0": 1, "c1": 1}
    eventually(lambda: session.client.status == "running" and status(session))
    assert session.client.submit(work.where, tag="crops", pure=False).result(timeout=60) in calm
    assert names(session) == calm
    assert pods_of(kubernetes_bed, cluster) > set(calm)
    assert len(pods_of(kubernetes_bed, cluster)) == 3
    assert "create pods" not in kubernetes_bed.requests()


def test_workers_asked_for_while_the_api_server_is_down_come_once(
    session, calm, kubernetes_bed, eventually
):
    session.scale("crops", 3)
    kubernetes_bed.down(2)
    eventually(lambda: status(session) and status(session)["crops"].running == 3)
    assert len(pods_of(kubernetes_bed, session.cluster.site.frame.cluster_id)) == 4
    session.scale("crops", 2)


@pytest.mark.parametrize("trouble", ["throttle", "breakdown"])
def test_a_server_that_is_overloaded_or_broken_is_asked_until_it_answers(
    session, calm, kubernetes_bed, eventually, trouble
):
    getattr(kubernetes_bed, trouble)(2)
    session.scale("crops", 3)
    eventually(lambda: status(session)["crops"].running == 3)
    assert set(calm) < set(names(session))
    getattr(kubernetes_bed, trouble)(2)
    session.scale("crops", 2)
    eventually(lambda: len(names(session)) == 2)
    pods = pods_of(kubernetes_bed, session.cluster.site.frame.cluster_id)
    assert len(pods) == 3
    assert status(session)["crops"].last_loss is None


def test_a_watch_that_ends_goes_on_where_it_was(session, calm, kubernetes_bed, eventually):
    relists = session.cluster.site.watch.relists
    kubernetes_bed.requests(reset=True)
    kubernetes_bed.close_watches()
    eventually(lambda: kubernetes_bed.requests().get("watch pods"))
    kubernetes_bed.kill(calm[0])
    eventually(lambda: calm[0] not in names(session))
    assert session.cluster.site.watch.relists == relists


def test_a_watch_whose_history_is_gone_begins_with_a_list(
    session, calm, kubernetes_bed, eventually
):
    relists = session.cluster.site.watch.relists
    kubernetes_bed.compact()
    eventually(lambda: session.cluster.site.watch.relists > relists)
    kubernetes_bed.kill(calm[0])
    eventually(lambda: calm[0] not in names(session))


# Pods that end ------------------------------------------------------------------------------------


def evicted(bed, pod):
    bed.evict(pod)


def preempted(bed, pod):
    bed.preempt(pod)


@pytest.mark.parametrize("end", [evicted, preempted])
def test_a_call_in_a_pod_that_must_go_runs_again_and_is_not_to_blame(
    session, calm, work, notes, kubernetes_bed, eventually, end
):
    call = session.client.submit(work.slow, "moved", 2, tag="crops", pure=False)
    pod = eventually(notes)[0].split()[-1]
    end(kubernetes_bed, pod)
    assert call.result(timeout=60) == "moved"
    begun, *_, ended = notes()
    assert ended.split()[-1] != pod == begun.split()[-1]
    eventually(lambda: blame(session, call) == 0)
    eventually(lambda: end.__name__ in (status(session)["crops"].last_loss or ""))


def blame(session, call):
    """Number of lost workers that the scheduler counts against a call."""

    def suspicious(dask_scheduler, key):
        return dask_scheduler.tasks[key].suspicious

    return session.client.run_on_scheduler(suspicious, key=call.key)


def test_a_call_on_a_node_that_is_lost_runs_again_and_is_not_to_blame(
    session, calm, work, notes, kubernetes_bed, eventually
):
    kubernetes_bed.add_node("storm-1", cpu="1")
    session.scale("crops", 3)
    eventually(lambda: status(session)["crops"].running == 3)
    (pod,) = set(names(session)) - set(calm)
    calls = session.client.map(work.slow, range(3), [3] * 3, tag="crops", pure=False)
    eventually(lambda: any(line.endswith(pod) for line in notes()))
    kubernetes_bed.lose_node("storm-1", after=0.5)
    assert session.client.gather(calls) == [0, 1, 2]
    assert max(blame(session, call) for call in calls) == 0
    eventually(lambda: "node was lost" in (status(session)["crops"].last_loss or ""))
    session.scale("crops", 2)


def test_an_end_does_not_wait_for_a_node_that_is_lost_and_names_it(
    place, tmp_path, kubernetes_bed, eventually, caplog
):
    (tmp_path / "shared").mkdir()
    kubernetes_bed.add_namespace("far")
    manifest = MANIFEST.replace("  k:\n", "  k:\n    namespace: far\n")
    with running(tmp_path, kubernetes_bed.kubeconfig("admin"), manifest) as session:
        kubernetes_bed.add_node("far", cpu="1")  # without pods it is the first choice
        session.scale("crops", 3)
        eventually(lambda: status(session)["crops"].running == 3)
        pods = session.cluster.site.watch.pods
        (lost,) = [n for n, pod in pods.items() if pod["spec"].get("nodeName") == "far"]
        kubernetes_bed.lose_node("far", after=1000)
        eventually(lambda: pods[lost]["status"].get("reason") == "NodeLost")
    words = f"pod {lost} was deleted, and stays until its node 'far' answers or is removed"
    assert words in caplog.text
    assert pods.keys() == {lost}


def test_a_pod_that_is_told_to_go_hands_over_its_results(
    session, calm, work, notes, kubernetes_bed, eventually
):
    calls = [
        session.client.submit(work.slow, f"kept{n}", 0, tag="crops", pure=False) for n in range(4)
    ]
    eventually(lambda: all(call.done() for call in calls))
    pod = notes()[0].split()[-1]
    delete(kubernetes_bed, "pods", pod)
    eventually(lambda: pod not in names(session))
    assert session.client.gather(calls) == [f"kept{n}" for n in range(4)]
    assert set(ran(notes()).values()) == {1}
    lost = eventually(lambda: status(session)["crops"].last_loss)
    assert lost.endswith(": its pod was deleted")


@pytest.mark.parametrize("way", ["submit", "executor"])
def test_a_pod_killed_for_its_memory_is_an_out_of_memory_error_as_everywhere(
    session, calm, work, notes, eventually, way
):
    session.scale("small", 1)
    with session.client.pool(tag="small") as pool:
        submit = pool.submit if way == "executor" else session.client.submit
        options = {} if way == "executor" else {"tag": "small", "pure": False}
        with pytest.raises(OutOfMemory) as caught:
            submit(work.hog, **options).result(timeout=120)
    assert "used up 250M, the memory of component 'small'; it got to" in str(caught.value)
    assert ran(notes())["hog"] == (3 if way == "executor" else 2)
    eventually(lambda: "out of memory" in (status(session)["small"].last_loss or ""))
    session.scale("small", 0)


# Pods that do not start ---------------------------------------------------------------------------


def test_a_component_whose_image_does_not_exist_is_named_and_others_go_on(
    session, calm, work, kubernetes_bed, eventually
):
    kubernetes_bed.image("nowhere/*", error="manifest for nowhere/ghost:1 not found")
    session.scale("ghosts", 1)
    reason = eventually(lambda: status(session)["ghosts"].reason)
    assert "image 'nowhere/ghost:1' cannot be pulled" in reason
    assert session.client.submit(work.where, tag="crops", pure=False).result(timeout=60) in calm
    session.scale("ghosts", 0)


def test_a_full_quota_lets_in_what_it_allows_and_the_rest_when_it_is_gone(
    session, calm, kubernetes_bed, eventually
):
    quota = {"metadata": {"name": "storm"}, "spec": {"hard": {"pods": "4"}}}
    create(kubernetes_bed, "resourcequotas", {"apiVersion": "v1", "kind": "ResourceQuota"} | quota)
    try:
        session.scale("crops", 4)
        eventually(lambda: status(session)["crops"].running == 3, timeout=180)
        full = "the quota is used up: pods "
        eventually(lambda: full in (status(session)["crops"].waiting or ""), timeout=180)
        assert "exceeded quota: storm" in status(session)["crops"].waiting
    finally:
        delete(kubernetes_bed, "resourcequotas", "storm")
    eventually(lambda: status(session)["crops"].running == 4, timeout=180)
    session.scale("crops", 2)
