"""Ends and beginnings of clusters in Kubernetes: two users, a scheduler that dies, creators that die."""

import asyncio
import contextlib
import json
import os
import subprocess
import sys

import pytest
from place_objects import grant

from scalable import ScalableSession
from scalable.errors import ProviderError
from scalable.providers.kubernetes import render
from scalable.providers.kubernetes.api import KubernetesApi, KubernetesError, Resource
from scalable.providers.kubernetes.permissions import RULES, session_rules

pytest.importorskip("kubernetes_asyncio")

MANIFEST = """
version: 1
project: {name: ends}
targets:
  k: {provider: kubernetes, image: "site/scalable:1", start_timeout: 10s, abandoned_after: 3s}
components:
  crops: {cpus: 1, memory: 500M, workers: 1}
"""
KINDS = {"jobs": "batch/v1", "pods": "", "secrets": "", "services": ""}


def ask(bed, coroutine_function):
    """Run a coroutine function with a connection of the administrator; return its result."""

    async def run():
        api = KubernetesApi(None)
        try:
            return await coroutine_function(api)
        finally:
            await api.close()

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KUBECONFIG", str(bed.kubeconfig("admin")))
        return asyncio.run(run())


def objects(bed):
    """Names of all objects in the namespace that belong to clusters: plural -> names."""

    async def look(api):
        found = {}
        for plural, group in KINDS.items():
            answer = await api.request("GET", Resource(plural, "default", group))
            found[plural] = {
                thing["metadata"]["name"]
                for thing in answer["items"]
                if thing["metadata"]["name"].startswith("scalable-")
            }
        return found

    return ask(bed, look)


def all_of(bed, cluster):
    """Names of all objects of a cluster."""
    return {name for names in objects(bed).values() for name in names if cluster in name}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A directory with the manifest."""
    directory = tmp_path_factory.mktemp("ends")
    (directory / "scalable.yaml").write_text(MANIFEST)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)
        yield directory


@contextlib.contextmanager
def running(bed, user, directory):
    """Run a session of a user."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KUBECONFIG", str(bed.kubeconfig(user)))
        session = ScalableSession.from_yaml(directory / "scalable.yaml", target="k")
        try:
            session.start().wait_for_workers(1, timeout=120)
            yield session
        finally:
            session.close()


def after(seconds, value):
    import time

    time.sleep(seconds)
    return value


@pytest.fixture(scope="module")
def theirs(place, kubernetes_bed):
    """A session of bob, in the namespace of alice."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(render, "KEPT_S", 1)
        with running(kubernetes_bed, "bob", place) as session:
            yield session


def test_a_cluster_of_another_user_in_the_namespace_is_not_touched(place, theirs, kubernetes_bed):
    before = all_of(kubernetes_bed, theirs.cluster.site.frame.cluster_id)
    with running(kubernetes_bed, "alice", place) as ours:
        call = theirs.client.submit(after, 2, 42, tag="crops", pure=False)
        ours.scale("crops", 0)
        cluster = ours.cluster.site.frame.cluster_id
    assert all_of(kubernetes_bed, cluster) == set()
    assert call.result(timeout=60) == 42
    assert all_of(kubernetes_bed, theirs.cluster.site.frame.cluster_id) == before


def test_a_conflict_on_every_second_write_of_a_session_changes_nothing(
    kubernetes_bed, place, eventually
):
    kubernetes_bed.conflicts(2)
    try:
        with running(kubernetes_bed, "alice", place) as session:
            pools = session.cluster
            cluster = session.cluster.site.frame.cluster_id
            for count in (3, 1):
                session.scale("crops", count)
                eventually(lambda n=count: pools.pools["crops"].running == n)
                eventually(lambda n=count: len(pools.site.launcher._names) == n)
            assert pools.pools["crops"].last_loss is None
            pods = {name for name in objects(kubernetes_bed)["pods"] if cluster in name}
            assert len(pods) == 2  # the scheduler's and one worker's
    finally:
        refused = kubernetes_bed.conflicts(0)
    assert all_of(kubernetes_bed, cluster) == set()
    assert {what.split()[0] for what in refused} >= {"create", "delete"}, refused
    assert refused["create pods"] >= 1


def test_a_cluster_whose_scheduler_is_killed_has_failed_and_leaves_nothing(
    theirs, kubernetes_bed, eventually
):
    cluster = theirs.cluster.site.frame.cluster_id
    (scheduler,) = {pod for pod in objects(kubernetes_bed)["pods"] if cluster in pod} - set(
        theirs.cluster.site.launcher._names.values()
    )
    kubernetes_bed.kill(scheduler)
    eventually(lambda: theirs.cluster.status.name == "failed")
    eventually(
        lambda: not any(cluster in pod for pod in objects(kubernetes_bed)["pods"] - {scheduler})
    )
    theirs.close()
    assert all_of(kubernetes_bed, cluster) == set()


def test_a_pod_that_is_not_configured_is_told_with_what_is_missing(
    kubernetes_bed, place, tmp_path, monkeypatch
):
    key = {"secretKeyRef": {"name": "nobody-made-it", "key": "token"}}
    env = [{"name": "TOKEN", "valueFrom": key}]
    pod = {"spec": {"containers": [{"name": "scalable", "env": env}]}}
    (tmp_path / "pod.yaml").write_text(json.dumps(pod))
    text = MANIFEST.replace("start_timeout: 10s", "start_timeout: 2s, pod_template: pod.yaml")
    (tmp_path / "scalable.yaml").write_text(text)
    monkeypatch.setenv("KUBECONFIG", str(kubernetes_bed.kubeconfig()))
    before = objects(kubernetes_bed)
    with pytest.raises(ProviderError) as caught:
        ScalableSession.from_yaml(tmp_path / "scalable.yaml", target="k").start()
    assert "CreateContainerConfigError" in caught.value.message
    assert "nobody-made-it" in caught.value.message
    assert objects(kubernetes_bed) == before


def test_a_session_with_the_printed_role_starts_although_answers_are_lost(
    kubernetes_bed, tmp_path, monkeypatch
):
    text = MANIFEST.replace("start_timeout: 10s", "namespace: lossy, manager: there")
    (tmp_path / "scalable.yaml").write_text(text)
    session = ScalableSession.from_yaml(tmp_path / "scalable.yaml", target="k")
    grant(kubernetes_bed, "lossy", session_rules(RULES, session.spec.options))
    monkeypatch.setenv("KUBECONFIG", str(kubernetes_bed.kubeconfig("nobody")))
    once, lost = KubernetesApi._once, []

    async def lossy(self, method, path, *rest):
        answer = await once(self, method, path, *rest)
        if method == "POST" and path not in lost:
            lost.append(path)
            raise KubernetesError("the connection was lost", transient=True)
        return answer

    monkeypatch.setattr(KubernetesApi, "_once", lossy)
    with session:
        assert session.client.submit(after, 0, 42, tag="crops").result(timeout=120) == 42
    kinds = {path.rpartition("/")[2] for path in lost}
    assert kinds >= {"jobs", "services", "secrets", "serviceaccounts", "roles", "rolebindings"}


#: A creator that is killed after a number of objects that it has created or changed.
CREATOR = """
import os
import signal
import sys

from scalable import ScalableSession
from scalable.providers.kubernetes import render
from scalable.providers.kubernetes.api import KubernetesApi

render.KEPT_S = render.MARGIN_S = 1
left = int(sys.argv[1])
request = KubernetesApi.request


async def dying(self, method, resource, *parts, **options):
    global left
    answer = await request(self, method, resource, *parts, **options)
    if method in ("POST", "PATCH") and "dryRun" not in (options.get("query") or {}):
        left -= 1
        print(method, resource.name, answer["metadata"]["name"], flush=True)
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
    return answer


KubernetesApi.request = dying
ScalableSession.from_yaml(target="k").start().wait_for_workers(1)
"""


def test_a_creator_that_is_killed_at_any_point_of_its_start_leaves_nothing(
    kubernetes_bed, tmp_path, monkeypatch, eventually
):
    # A job's deadline runs from its start: four at once must start well within it.
    text = MANIFEST.replace("start_timeout: 10s", "start_timeout: 30s")
    (tmp_path / "scalable.yaml").write_text(text)
    monkeypatch.setenv("KUBECONFIG", str(kubernetes_bed.kubeconfig()))
    before = objects(kubernetes_bed)
    creators = [
        subprocess.Popen(
            [sys.executable, "-c", CREATOR, str(point)],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            text=True,
        )
        for point in (1, 2, 4, 6)
    ]
    said = [creator.communicate(timeout=120)[0].splitlines() for creator in creators]
    assert [creator.returncode for creator in creators] == [-9] * 4
    assert [len(lines) for lines in said] == [1, 2, 4, 6]
    assert all(lines[0].startswith("POST jobs scalable-") for lines in said)
    eventually(lambda: objects(kubernetes_bed) == before, timeout=120.0)


def test_a_first_process_without_a_handler_of_its_own_ends_when_it_is_told(
    kubernetes_bed, eventually
):
    pods = Resource("pods", "default")
    command = [*render.PROGRAM, "http.server", "0", "--bind", "127.0.0.1"]
    container = {"name": "main", "image": "any", "command": command}
    container["env"] = [{"name": "PYTHONUNBUFFERED", "value": "1"}]
    spec = {"restartPolicy": "Never", "containers": [container]}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "first"}, "spec": spec}
    ask(kubernetes_bed, lambda api: api.create(pods, json.dumps(body).encode()))

    def serves():
        with contextlib.suppress(ProviderError):
            return "Serving" in ask(
                kubernetes_bed, lambda a: a.request("GET", pods, "first", "log")
            )

    def exists():
        names = ask(kubernetes_bed, lambda api: api.request("GET", pods))["items"]
        return any(pod["metadata"]["name"] == "first" for pod in names)

    eventually(serves)
    # Without the handler it would go on for as long as it may.
    ask(kubernetes_bed, lambda api: api.delete(pods, "first", gracePeriodSeconds=600))
    eventually(lambda: not exists())


def test_an_interrupted_start_leaves_nothing(kubernetes_bed, tmp_path, eventually):
    """Ctrl-C while the objects are made, which happens in the event loop of another thread."""
    (tmp_path / "scalable.yaml").write_text(MANIFEST)
    script = """
import os, signal
from scalable import ScalableSession
from scalable.providers.kubernetes.place import NamespacePlace
create = NamespacePlace.create
async def interrupted(self, *arguments):
    await create(self, *arguments)
    print("made", flush=True)
    os.kill(os.getpid(), signal.SIGINT)
NamespacePlace.create = interrupted
ScalableSession.from_yaml("scalable.yaml", target="k").start()
"""
    before = {name for names in objects(kubernetes_bed).values() for name in names}
    environment = os.environ | {"KUBECONFIG": str(kubernetes_bed.kubeconfig())}
    ended = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env=environment, check=False,
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert "made" in ended.stdout, ended.stderr
    assert "KeyboardInterrupt" in ended.stderr
    after = {name for names in objects(kubernetes_bed).values() for name in names}
    assert after <= before
