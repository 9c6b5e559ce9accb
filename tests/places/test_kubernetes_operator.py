"""Sessions through the Dask Kubernetes operator: the real one, on the test bed."""

import importlib
import json
import os
import signal
import subprocess
import sys

import pytest
import yaml

import scalable
from scalable import ScalableSession, records
from scalable.errors import ProviderError
from scalable.model import ProgramState
from scalable.protocol import operations
from scalable.providers.kubernetes import objects as drafts
from scalable.providers.kubernetes.api import KubernetesApi, Resource
from verbs import program

pytest.importorskip("kubernetes_asyncio")
pytest.importorskip("aiohttp")
from kubernetes_bed.dask_operator import as_admin, environment, operator_kinds, running_operator

if environment() is None and not os.environ.get("SCALABLE_REQUIRE_KUBERNETES"):
    pytest.skip("the Dask operator is not installed: make", allow_module_level=True)

NAMESPACE = "operated"
MANIFEST = f"""
version: 1
project: {{name: harvest}}
targets:
  k:
    provider: kubernetes
    namespace: {NAMESPACE}
    operator: true
    image: site/scalable:1
components:
  crops: {{cpus: 1, memory: 500M, workers: 2, env: {{SEASON: dry}}}}
  statistics: {{cpus: 1, memory: 400M, workers: 1}}
"""
WORK = """
import os
import time


def where():
    return os.uname().nodename


def after(seconds):
    time.sleep(seconds)
    return os.uname().nodename
"""
DASK, RBAC = "kubernetes.dask.org/v1", "rbac.authorization.k8s.io/v1"
PLACES = {
    **dict.fromkeys(("pods", "secrets", "services"), ""),
    **dict.fromkeys(("deployments", "replicasets"), "apps/v1"),
    **dict.fromkeys(("daskclusters", "daskworkergroups"), DASK),
    "jobs": "batch/v1",
}


def found(bed, plural, selector=""):
    """Objects of a kind in the namespace."""

    async def look(api):
        resource = Resource(plural, NAMESPACE, PLACES[plural])
        query = {"labelSelector": selector} if selector else None
        return (await api.request("GET", resource, query=query))["items"]

    return as_admin(bed, look)


def names(things):
    return sorted(thing["metadata"]["name"] for thing in things)


def left(bed):
    return {plural: names(there) for plural in PLACES if (there := found(bed, plural))}


@pytest.fixture(scope="module")
def place(kubernetes_bed, tmp_path_factory):
    """A directory with the manifest, and the kubeconfig of a user without rights so far."""
    directory = tmp_path_factory.mktemp("operator")
    (directory / "scalable.yaml").write_text(MANIFEST)
    (directory / "operated_work.py").write_text(WORK)
    kubernetes_bed.add_namespace(NAMESPACE)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)
        patch.syspath_prepend(directory)
        patch.setenv("KUBECONFIG", str(kubernetes_bed.kubeconfig()))
        yield directory


@pytest.fixture(scope="module")
def advice(place):
    """Faults that the live check finds before anything is installed: key -> fault."""
    report = ScalableSession.from_yaml(place / "scalable.yaml", target="k").check()
    return {fault.path[-1]: fault for fault in report.errors}


@pytest.fixture(scope="module")
def kinds(kubernetes_bed, advice):
    """The operator's kinds of objects; the user has the rights that the check has shown."""
    role = yaml.safe_load(advice["namespace"].hint.partition("\n")[2])
    binding = {
        "apiVersion": RBAC,
        "kind": "RoleBinding",
        "metadata": {"name": "scalable"},
        "subjects": [{"kind": "User", "name": "alice", "apiGroup": RBAC.partition("/")[0]}],
        "roleRef": {"kind": "Role", "name": role["metadata"]["name"], "apiGroup": RBAC[:-3]},
    }

    async def grant(api):
        for plural, body in (("roles", role), ("rolebindings", binding)):
            await api.create(Resource(plural, NAMESPACE, RBAC), json.dumps(body).encode())

    as_admin(kubernetes_bed, grant)
    with operator_kinds(kubernetes_bed):
        yield


@pytest.fixture(scope="module")
def log(kubernetes_bed, kinds, tmp_path_factory):
    """The output of the running operator."""
    directory = tmp_path_factory.mktemp("home")
    with running_operator(kubernetes_bed, NAMESPACE, directory) as log:
        yield log


@pytest.fixture(scope="module")
def work(place):
    return importlib.import_module("operated_work")


@pytest.fixture(scope="module")
def sent():
    """Bodies of the objects that were created."""
    return []


@pytest.fixture(scope="module")
def session(place, log, sent):
    create = KubernetesApi.create

    async def remembered(self, resource, body):
        sent.append(body.decode())
        return await create(self, resource, body)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(KubernetesApi, "create", remembered)
        session = ScalableSession.from_yaml(place / "scalable.yaml", target="k")
        client = session.start()
        try:
            client.wait_for_workers(3, timeout=150)
            yield session
        finally:
            session.close()


@pytest.fixture
def pods(session, eventually):
    """Wait for the wanted workers; return unit -> its pod."""

    def running():
        pools = session.cluster.pools
        return all(pool.running == pool.wanted for pool in pools.values()) and pools

    eventually(running)
    launcher = session.cluster.site.launcher
    return {
        unit: launcher._last[name]["metadata"]["name"] for unit, name in launcher._names.items()
    }


def of(pods, tag):
    return {unit: pod for unit, pod in pods.items() if unit.startswith(tag)}


# Before ------------------------------------------------------------------------------------------


def test_a_live_check_says_how_to_install_the_operator_and_which_rights_are_missing(advice):
    assert "does not have daskclusters, daskworkergroups" in advice["operator"].message
    assert "helm install" in advice["operator"].hint
    assert "create daskworkergroups" in advice["namespace"].message


def test_a_cluster_without_the_operators_kinds_says_how_to_install_it(
    kubernetes_bed, place, monkeypatch
):
    monkeypatch.setenv("KUBECONFIG", str(kubernetes_bed.kubeconfig("admin")))
    with pytest.raises(ProviderError, match="does not have daskclusters") as caught:
        ScalableSession.from_yaml(target="k").start()
    assert "helm install" in caught.value.hint


def test_a_cluster_whose_operator_does_not_run_says_so_and_leaves_nothing(
    kubernetes_bed, kinds, tmp_path
):
    manifest = MANIFEST.replace("image:", "start_timeout: 1s\n    image:")
    (tmp_path / "m.yaml").write_text(manifest)
    with pytest.raises(ProviderError, match="the Dask operator has not created its pod"):
        ScalableSession.from_yaml(tmp_path / "m.yaml", target="k").start()
    assert left(kubernetes_bed) == {}


# Running ------------------------------------------------------------------------------------------


def test_nothing_is_missing_once_the_role_that_was_shown_is_bound(place, session):
    report = ScalableSession.from_yaml(place / "scalable.yaml", target="k").check()
    assert not report.errors


def test_calls_run_in_pods_of_their_component(session, pods, work):
    calls = [session.client.submit(work.where, tag="crops", pure=False) for _ in range(4)]
    assert set(session.client.gather(calls)) <= set(of(pods, "crops").values())
    call = session.client.submit(work.where, tag="statistics")
    assert [call.result()] == list(of(pods, "statistics").values())


def test_each_worker_is_a_worker_group_with_the_label_of_its_component(
    session, pods, kubernetes_bed
):
    crops = names(found(kubernetes_bed, "daskworkergroups", "scalable/tag=crops"))
    assert crops == sorted(of(session.cluster.site.launcher._names, "crops").values())
    assert all(
        name.endswith(unit) for name, unit in zip(crops, sorted(of(pods, "crops")), strict=True)
    )
    groups = found(kubernetes_bed, "daskworkergroups", "scalable/tag")
    assert [group["spec"]["worker"]["replicas"] for group in groups] == [1, 1, 1]
    clusters = found(kubernetes_bed, "daskclusters")
    assert names(clusters) == [session.cluster.name]


def test_what_plan_shows_is_what_is_sent_byte_for_byte(session, pods, sent):
    frame = session.cluster.site.frame
    shown = drafts.objects(session.spec, {"crops": 2, "statistics": 1}).values()
    known = {
        body.decode()
        .replace(drafts.ROOT_UID, frame.root_uid)
        .replace(drafts.CLUSTER_ID, frame.cluster_id)
        for body in shown
    }
    kinds = {text: json.loads(text)["kind"] for text in known}
    assert sorted(kinds.values()) == sorted(
        ["Job", "DaskCluster", *["Secret"] * 3, *["DaskWorkerGroup"] * 3]
    )
    assert {text for text in known if kinds[text] != "Secret"} <= set(sent)


# Changes and losses -------------------------------------------------------------------------------


def test_scaling_one_component_never_takes_a_busy_worker_of_another(
    session, pods, work, log, kubernetes_bed, eventually
):
    busy = session.client.submit(work.after, 4, tag="statistics", pure=False)
    session.scale("crops", 3)
    eventually(lambda: session.cluster.pools["crops"].running == 3)
    session.scale("crops", 1)
    units = session.cluster.site.launcher._names
    eventually(lambda: len(of(units, "crops")) == 1, timeout=60.0)
    assert [busy.result(timeout=60)] == list(of(pods, "statistics").values())
    assert session.cluster.pools["statistics"].lost == 0
    left = names(found(kubernetes_bed, "daskworkergroups", "scalable/tag"))
    assert left == sorted(units.values())
    assert "Workers to close" not in log.read_text()  # what the operator says when it chooses


def test_a_killed_worker_is_replaced_and_its_call_runs_again(
    session, pods, work, kubernetes_bed, eventually
):
    ((unit, lost),) = of(pods, "statistics").items()
    group = session.cluster.site.launcher._names[unit]
    call = session.client.submit(work.after, 2, tag="statistics", pure=False)
    eventually(lambda: session.client.processing() and any(session.client.processing().values()))
    kubernetes_bed.kill(lost, NAMESPACE)
    assert call.result(timeout=90) != lost
    eventually(lambda: unit not in session.cluster.site.launcher._names)
    assert group not in names(found(kubernetes_bed, "daskworkergroups"))


def test_an_evicted_worker_is_replaced_not_revived(session, pods, work, kubernetes_bed, eventually):
    ((unit, lost),) = of(pods, "statistics").items()
    kubernetes_bed.evict(lost, NAMESPACE)
    call = session.client.submit(work.where, tag="statistics", pure=False)
    assert call.result(timeout=90) != lost
    assert "evicted" in session.cluster.pools["statistics"].last_loss
    eventually(lambda: unit not in session.cluster.site.launcher._names)


def test_a_second_start_of_a_worker_is_refused(session, pods, kubernetes_bed, eventually):
    ((unit, first),) = of(pods, "statistics").items()

    async def copy(api):
        there = Resource("pods", NAMESPACE)
        spec = (await api.request("GET", there, first))["spec"]
        spec |= {"restartPolicy": "Never"}
        spec.pop("nodeName")
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "second"}, "spec": spec}
        await api.create(there, json.dumps(body).encode())

    async def ended(api):
        status = (await api.request("GET", Resource("pods", NAMESPACE), "second"))["status"]
        (own,) = status.get("containerStatuses") or [{"state": {}}]
        return own["state"].get("terminated", {}).get("exitCode")

    as_admin(kubernetes_bed, copy)
    code = eventually(lambda: as_admin(kubernetes_bed, ended), timeout=60.0)
    assert code == operations.BEGAN_BEFORE
    workers = session.client.scheduler_info(n_workers=-1)["workers"].values()
    assert [worker["name"] for worker in workers].count(unit) == 1

    async def remove(api):
        await api.delete(Resource("pods", NAMESPACE), "second")

    as_admin(kubernetes_bed, remove)


# Ends ---------------------------------------------------------------------------------------------


def test_closing_removes_everything(session, kubernetes_bed):
    assert left(kubernetes_bed)
    session.close()
    assert left(kubernetes_bed) == {}


CREATOR = """
from scalable import ScalableSession
from scalable.providers.kubernetes import render
render.KEPT_S = 1
session = ScalableSession.from_yaml(target="k")
session.start().wait_for_workers(1)
print(session.cluster.name, flush=True)
input()
"""


@pytest.mark.slow
def test_a_creator_that_is_killed_leaves_nothing(kubernetes_bed, log, tmp_path, eventually):
    text = MANIFEST.replace("image:", "abandoned_after: 3s\n    image:")
    (tmp_path / "scalable.yaml").write_text(text.replace("workers: 2", "workers: 0"))
    creator = subprocess.Popen(
        [sys.executable, "-c", CREATOR], cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert creator.stdout.readline().decode().strip() in names(found(kubernetes_bed, "jobs"))
    creator.send_signal(signal.SIGKILL)
    creator.communicate()
    eventually(lambda: left(kubernetes_bed) == {}, timeout=150.0)


@pytest.mark.slow
def test_an_empty_adaptive_pool_grows_when_a_call_comes(kubernetes_bed, log, work, tmp_path):
    text = MANIFEST.replace("image:", "adaptive: {minimum: 0, maximum: 3}\n    image:")
    text = text.replace("workers: 2", "workers: {minimum: 0, maximum: 2}")
    (tmp_path / "scalable.yaml").write_text(text.replace("workers: 1", "workers: 0"))
    with ScalableSession.from_yaml(tmp_path / "scalable.yaml", target="k") as client:
        assert client.submit(work.where, tag="crops").result(timeout=150)
    assert left(kubernetes_bed) == {}


# Detached clusters --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def detached(place, log, kubernetes_bed, tmp_path_factory):
    """A cluster that a process started which has ended, used from another state directory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("creator")))
        done = program("up", "scalable.yaml", "--target", "k", "--name", "apart", "--yes")
        assert done.returncode == 0, done.stderr
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("elsewhere")))
        access = yaml.safe_load(kubernetes_bed.kubeconfig().read_text())
        for entry in access["contexts"]:
            entry["context"]["namespace"] = NAMESPACE
        (place / "kubeconfig").write_text(yaml.safe_dump(access))
        patch.setenv("KUBECONFIG", str(place / "kubeconfig"))
        with scalable.connect("apart") as client:
            yield client
        program("down", "apart", "--yes")


@pytest.mark.slow
def test_a_detached_cluster_is_worker_groups_that_its_manager_makes(detached, work, kubernetes_bed):
    cluster = records.find("apart")
    assert detached.submit(work.where, tag="statistics").result(120)
    mark = f"scalable/tag,scalable/cluster={cluster.id}"
    groups = found(kubernetes_bed, "daskworkergroups", mark)
    tags = sorted(group["metadata"]["labels"]["scalable/tag"] for group in groups)
    assert tags == ["crops", "crops", "statistics"]
    assert cluster.programs() == {
        "scheduler": ProgramState("running"),
        "k": ProgramState("running"),
    }


@pytest.mark.slow
def test_a_detached_cluster_is_scaled_from_elsewhere(detached, kubernetes_bed, eventually):
    cluster = records.find("apart")
    done = program("scale", "apart", "crops=1")
    assert done.returncode == 0, done.stderr
    selector = f"scalable/cluster={cluster.id},scalable/tag=crops"
    eventually(lambda: len(found(kubernetes_bed, "daskworkergroups", selector)) == 1, timeout=120)


@pytest.mark.slow
def test_a_detached_cluster_whose_scheduler_is_killed_has_failed(
    detached, kubernetes_bed, eventually
):
    cluster = records.find("apart")
    mark = f"scalable/cluster={cluster.id}"
    (pod,) = names(found(kubernetes_bed, "pods", f"{mark},scalable/role=scheduler"))
    kubernetes_bed.kill(pod, NAMESPACE)
    eventually(lambda: cluster.programs()["scheduler"].state == "failed", timeout=60)
    assert "failed" in program("status", "apart").stdout
    eventually(
        lambda: not found(kubernetes_bed, "daskworkergroups", f"scalable/tag,{mark}"), timeout=150
    )
    place = cluster.place()
    assert cluster.id in place.clusters()  # its reason can still be read, from anywhere
    assert program("down", "apart", "--yes").returncode == 0
    assert cluster.id not in place.clusters()
