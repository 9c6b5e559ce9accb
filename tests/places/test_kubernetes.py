"""Sessions on Kubernetes: the scheduler and the workers are pods of the test bed."""

import asyncio
import importlib
import json
import signal
import subprocess
import sys

import pytest
from click.testing import CliRunner

from scalable import ScalableSession, current_storage
from scalable.cli.main import cli
from scalable.errors import ProviderError
from scalable.providers.kubernetes import objects as drafts
from scalable.providers.kubernetes.api import KubernetesApi, Resource
from scalable.runs.reading import read_run

pytest.importorskip("kubernetes_asyncio")

MANIFEST = """
version: 1
project: {name: harvest, default_storage: s3://bucket/harvest}
targets:
  k:
    provider: kubernetes
    image: site/scalable:1
    mounts: {"emptydir://10M": /shared}
components:
  crops: {cpus: 1, memory: 500M, workers: 2, env: {SEASON: dry}}
  statistics: {cpus: 1, memory: 400M, workers: 1}
"""
#: A module of the workflow: no file of this machine is in the pods, so it has to be carried.
WORK = """
import os
import time


def where():
    return os.uname().nodename


def season():
    return os.environ["SEASON"], os.listdir("/shared")


def after(seconds, value):
    time.sleep(seconds)
    return value
"""
ADMIN = {"jobs": "batch/v1", "pods": "", "secrets": "", "services": ""}


def objects(bed, namespace="default"):
    """Everything of clusters in a namespace: plural -> names."""

    async def look():
        api = KubernetesApi(None)
        try:
            found = {}
            for plural, group in ADMIN.items():
                answer = await api.request("GET", Resource(plural, namespace, group))
                found[plural] = sorted(thing["metadata"]["name"] for thing in answer["items"])
            return found
        finally:
            await api.close()

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KUBECONFIG", str(bed.kubeconfig("admin")))
        return asyncio.run(look())


def of_cluster(bed, cluster):
    """Names of a cluster's objects."""
    found = objects(bed)
    return [name for names in found.values() for name in names if cluster in name]


@pytest.fixture(scope="module")
def place(kubernetes_bed, tmp_path_factory):
    """A directory with the manifest, and the kubeconfig of a user."""
    directory = tmp_path_factory.mktemp("kubernetes")
    (directory / "scalable.yaml").write_text(MANIFEST)
    (directory / "work.py").write_text(WORK)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)
        patch.syspath_prepend(directory)
        patch.setenv("KUBECONFIG", str(kubernetes_bed.kubeconfig()))
        yield directory


@pytest.fixture(scope="module")
def work(place):
    """The module of the workflow."""
    return importlib.import_module("work")


@pytest.fixture(scope="module")
def sent():
    """Bodies of the objects that were created, in their order."""
    return []


@pytest.fixture(scope="module")
def session(place, sent):
    """A session with all its workers."""
    create = KubernetesApi.create

    async def remembered(self, resource, body):
        sent.append(body)
        return await create(self, resource, body)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(KubernetesApi, "create", remembered)
        session = ScalableSession.from_yaml(place / "scalable.yaml", target="k")
        client = session.start()
        try:
            client.wait_for_workers(3, timeout=120)
            yield session
        finally:
            session.close()


@pytest.fixture
def workers(session, eventually):
    """Wait for the planned workers, and return the names of their pods by tag."""

    def running():
        pools = session.cluster.pools
        return all(pool.running == pool.wanted for pool in pools.values()) and pools

    eventually(running)
    pods = session.cluster.site.launcher._names
    found = {"crops": [], "statistics": []}
    for unit, name in pods.items():
        found[unit.partition("-")[0]].append(name)
    return found


# Running ------------------------------------------------------------------------------------------


def test_calls_are_in_the_record_of_the_session(session, work):
    assert session.client.submit(work.after, 0, "recorded", tag="crops").result() == "recorded"
    assert {row["source"] for row in session.scaling_history} >= {"plan"}
    names = [row["task_name"] for row in read_run(session.run_path).tasks]
    assert "after" in names


def test_calls_run_in_pods_of_their_component(session, workers, work):
    calls = [session.client.submit(work.where, tag="crops", pure=False) for _ in range(4)]
    assert set(session.client.gather(calls)) <= set(workers["crops"])
    assert session.client.submit(work.where, tag="statistics").result() in workers["statistics"]
    assert session.client.submit(work.season, tag="crops").result() == ("dry", [])


def test_a_large_result_comes_through_the_tunnel(session):
    size = 20_000_000
    assert len(session.client.submit(bytes, size, tag="crops").result(timeout=60)) == size


def test_what_plan_shows_is_what_is_sent_byte_for_byte(session, workers, sent):
    frame = session.cluster.site.frame
    shown = drafts.objects(session.spec, {"crops": 2, "statistics": 1}).values()
    known = {
        body.decode()
        .replace(drafts.ROOT_UID, frame.root_uid)
        .replace(drafts.CLUSTER_ID, frame.cluster_id)
        for body in shown
    }
    assert len(sent) >= len(known)
    secrets = [json.loads(body) for body in sent if json.loads(body)["kind"] == "Secret"]
    empty = [json.loads(text) for text in known if json.loads(text)["kind"] == "Secret"]
    rest = {body.decode() for body in sent if json.loads(body)["kind"] != "Secret"}
    assert {text for text in known if json.loads(text)["kind"] != "Secret"} <= rest
    for secret in secrets:
        secret["data"] = dict.fromkeys(secret["data"], "")
        assert secret in empty


def test_the_command_shows_the_objects_and_writes_them(place, tmp_path):
    run = CliRunner().invoke(cli, ["plan", "--target", "k", "--show-manifests"])
    assert run.exit_code == 0, run.output
    documents = [json.loads(text) for text in run.stdout.split("---\n")]
    assert [d["kind"] for d in documents] == ["Job", "Secret", "Service", "Secret", "Secret"] + [
        "Pod"
    ] * 3
    written = ["plan", "--target", "k", "--show-manifests", "--output", str(tmp_path / "objects")]
    assert CliRunner().invoke(cli, written).exit_code == 0
    files = sorted((tmp_path / "objects").iterdir())
    assert [json.loads(file.read_text()) for file in files] == documents


# Changes and losses -------------------------------------------------------------------------------


def test_scaling_takes_one_request_for_each_pod(session, workers, kubernetes_bed, eventually):
    kubernetes_bed.requests(reset=True)
    session.scale("crops", 3)
    eventually(lambda: session.cluster.pools["crops"].running == 3)
    session.scale("crops", 2)
    eventually(lambda: len(session.cluster.site.launcher._names) == 3)
    requests = kubernetes_bed.requests()
    assert requests["create pods"] == 1
    assert requests["delete pods"] == 1
    assert "list pods" not in requests


def test_a_killed_pod_is_replaced_and_its_call_runs_again(
    session, workers, work, kubernetes_bed, eventually
):
    (lost,) = workers["statistics"]
    call = session.client.submit(work.after, 1.0, 42, tag="statistics", pure=False)
    eventually(lambda: session.client.processing() and any(session.client.processing().values()))
    kubernetes_bed.kill(lost)
    assert call.result(timeout=90) == 42
    eventually(lambda: lost not in session.cluster.site.launcher._names.values())


def test_an_evicted_pod_is_replaced_although_the_watch_was_lost(
    session, workers, work, kubernetes_bed, eventually
):
    relists = session.cluster.site.watch.relists
    kubernetes_bed.compact()
    eventually(lambda: session.cluster.site.watch.relists > relists)
    kubernetes_bed.close_watches()
    (lost,) = workers["statistics"]
    kubernetes_bed.evict(lost)
    assert (
        session.client.submit(work.where, tag="statistics", pure=False).result(timeout=90) != lost
    )
    status = session.cluster.pools["statistics"]
    assert "evicted" in status.last_loss


def test_workers_go_on_while_the_api_server_is_away(
    session, workers, work, kubernetes_bed, eventually
):
    names = {name for pods in workers.values() for name in pods}
    kubernetes_bed.down(2)
    eventually(lambda: _answers(session))
    assert set(session.cluster.site.launcher._names.values()) == names
    assert session.client.submit(work.where, tag="crops", pure=False).result(timeout=60) in names


def _answers(session):
    try:
        return bool(session.cluster.pools)
    except OSError:
        return False


# Refusals -----------------------------------------------------------------------------------------


def start(directory, manifest, kubeconfig, patch):
    """Start a session that is expected to fail, and return the error."""
    (directory / "m.yaml").write_text(manifest)
    patch.setenv("KUBECONFIG", str(kubeconfig))
    session = ScalableSession.from_yaml(directory / "m.yaml", target="k")
    with pytest.raises(ProviderError) as caught:
        session.start()
    return caught.value


def test_a_user_without_rights_is_told_the_verb_and_the_role(kubernetes_bed, tmp_path, monkeypatch):
    kubeconfig = kubernetes_bed.kubeconfig("viewer")
    error = start(tmp_path, MANIFEST, kubeconfig, monkeypatch)
    assert "may not create jobs in namespace 'default'" in error.message
    assert "kind: Role" in error.hint
    assert 'resources: ["pods/portforward"]' in error.hint


def test_an_image_that_does_not_exist_is_named_and_nothing_is_left(
    kubernetes_bed, tmp_path, monkeypatch
):
    kubernetes_bed.image("absent/*", error="manifest for absent/image:1 not found")
    manifest = MANIFEST.replace("site/scalable:1", "absent/image:1")
    error = start(tmp_path, manifest, kubernetes_bed.kubeconfig("bob"), monkeypatch)
    assert "absent/image:1" in error.message
    assert "cannot be pulled" in error.message


def test_an_image_without_python_or_this_package_is_named(kubernetes_bed, tmp_path, monkeypatch):
    kubernetes_bed.content("empty/*", python=False)
    manifest = MANIFEST.replace("site/scalable:1", "empty/image:1")
    error = start(tmp_path, manifest, kubernetes_bed.kubeconfig("bob"), monkeypatch)
    assert "image 'empty/image:1' has no program python3" in error.message
    assert "docs/images.md shows how to make one" in error.hint
    kubernetes_bed.content("bare/*", packages=False)
    manifest = MANIFEST.replace("site/scalable:1", "bare/image:1")
    error = start(tmp_path, manifest, kubernetes_bed.kubeconfig("bob"), monkeypatch)
    assert "the Python of image 'bare/image:1' does not have the package scalable" in error.message


@pytest.mark.slow
def test_a_pool_whose_image_has_no_package_says_so(kubernetes_bed, place, tmp_path, eventually):
    kubernetes_bed.content("bare/*", packages=False)
    text = MANIFEST.replace("workers: 1}", "workers: 1, image: bare/image:2}")
    (tmp_path / "scalable.yaml").write_text(text)
    session = ScalableSession.from_yaml(tmp_path / "scalable.yaml", target="k")
    with session as client:
        assert client.submit(int, "1", tag="crops").result(timeout=120) == 1
        pools = session.cluster
        eventually(lambda: pools.pools["statistics"].reason)
        reason = pools.pools["statistics"].reason
    assert "the Python of image 'bare/image:2' does not have the package scalable" in reason
    assert "docs/images.md shows how to make one" in reason


def test_a_live_check_names_what_is_missing(kubernetes_bed, tmp_path, monkeypatch):
    manifest = MANIFEST.replace("memory: 500M", "memory: 500T").replace(
        "emptydir://10M", "pvc://absent"
    )
    (tmp_path / "m.yaml").write_text(manifest)
    monkeypatch.setenv("KUBECONFIG", str(kubernetes_bed.kubeconfig("viewer")))
    report = ScalableSession.from_yaml(tmp_path / "m.yaml", target="k").check()
    messages = [fault.message for fault in report.errors]
    assert any("may not create jobs" in message for message in messages)
    assert any("memory 500T exceeds every node" in message for message in messages)
    assert any("no volume claim 'absent'" in message for message in messages)


@pytest.mark.slow
def test_an_empty_adaptive_pool_grows_when_a_call_comes(
    kubernetes_bed, place, work, tmp_path, eventually
):
    text = MANIFEST.replace("image:", "adaptive: {minimum: 0, maximum: 3}\n    image:")
    text = text.replace("workers: 2", "workers: {minimum: 0, maximum: 2}")
    (tmp_path / "scalable.yaml").write_text(text.replace("workers: 1", "workers: 0"))
    session = ScalableSession.from_yaml(tmp_path / "scalable.yaml", target="k")
    with session as client:
        session.cluster.order({"crops": 0}, source="plan")
        eventually(lambda: session.cluster.pools["crops"].wanted == 0)
        assert client.submit(work.after, 0, 1, tag="crops").result(timeout=120) == 1


def test_calls_know_the_storage_of_the_session(session):
    root = session.client.submit(lambda: current_storage().root, tag="statistics")
    assert root.result(timeout=120) == session.storage.root == "s3://bucket/harvest"


# Ends ---------------------------------------------------------------------------------------------


def test_closing_removes_everything(session, kubernetes_bed):
    cluster = session.cluster.site.frame.cluster_id
    assert of_cluster(kubernetes_bed, cluster)
    session.close()
    assert of_cluster(kubernetes_bed, cluster) == []


CREATOR = """
from scalable import ScalableSession
from scalable.providers.kubernetes import render
render.KEPT_S = 1
session = ScalableSession.from_yaml(target="k")
session.start().wait_for_workers(1)
print(session.cluster.site.frame.cluster_id, flush=True)
input()
"""


def test_a_creator_that_is_killed_leaves_nothing(kubernetes_bed, place, tmp_path, eventually):
    text = MANIFEST.replace("image:", "abandoned_after: 3s\n    image:").replace(
        "workers: 2", "workers: 0"
    )
    (tmp_path / "scalable.yaml").write_text(text)
    creator = subprocess.Popen(
        [sys.executable, "-c", CREATOR], cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    cluster = creator.stdout.readline().decode().strip()
    assert of_cluster(kubernetes_bed, cluster)
    creator.send_signal(signal.SIGKILL)
    creator.communicate()
    eventually(lambda: of_cluster(kubernetes_bed, cluster) == [], timeout=120.0)
