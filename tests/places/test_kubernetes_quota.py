"""Namespaces that do not take all pods: the reason is told at once, and nothing is left."""

import json

import pytest
from place_objects import asked, grant, objects

from scalable import ScalableSession
from scalable.errors import ProviderError
from scalable.providers.kubernetes.api import Resource
from scalable.providers.kubernetes.permissions import RULES
from verbs import program, read

pytest.importorskip("kubernetes_asyncio")

MANIFEST = """
version: 1
project: {name: poor}
targets:
  k: {provider: kubernetes, image: "site/scalable:1", namespace: poor, start_timeout: 3s}
components:
  crops: {cpus: 1, memory: 500M, workers: 1}
"""
WORDS = "the quota is used up: pods "


@pytest.fixture(scope="module")
def place(kubernetes_bed, tmp_path_factory):
    """A directory with the manifest, for a namespace that takes no pods."""
    kubernetes_bed.add_namespace("poor")
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "full"}}
    body = json.dumps(quota | {"spec": {"hard": {"pods": "0"}}}).encode()
    asked(kubernetes_bed, lambda api: api.create(Resource("resourcequotas", "poor"), body))
    directory = tmp_path_factory.mktemp("quota")
    (directory / "scalable.yaml").write_text(MANIFEST)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)
        patch.setenv("KUBECONFIG", str(kubernetes_bed.kubeconfig("admin")))
        patch.setenv("XDG_STATE_HOME", str(directory))
        yield directory


def test_a_session_without_room_for_its_scheduler_names_the_quota(place, kubernetes_bed):
    with pytest.raises(ProviderError) as caught:
        ScalableSession.from_yaml(target="k").start()
    assert WORDS in caught.value.message
    assert "exceeded quota: full" in caught.value.message
    assert not objects(kubernetes_bed, "poor")


def test_a_detached_cluster_without_room_for_its_scheduler_names_the_quota(
    place, kubernetes_bed, eventually
):
    done = program("up", "--target", "k", "--name", "poor", "--yes", "--no-wait")
    assert done.returncode == 0, done.stderr
    reason = eventually(lambda: read("status", "poor")["reason"])
    assert WORDS in reason
    assert program("down", "poor", "--yes").returncode == 0
    eventually(lambda: not objects(kubernetes_bed, "poor"))


# Rules that waiting does not change ---------------------------------------------------------------

NOT_ROOT = {"spec": {"securityContext": {"runAsNonRoot": True, "runAsUser": 1000, "fsGroup": 1000}}}


@pytest.fixture
def strict(kubernetes_bed, tmp_path, monkeypatch):
    """Make a directory with a manifest for a namespace, and the kubeconfig of a user."""

    def make(namespace, *, user="admin", more=""):
        text = MANIFEST.replace(
            "namespace: poor, start_timeout: 3s", f"namespace: {namespace}{more}"
        )
        (tmp_path / "scalable.yaml").write_text(text)
        (tmp_path / "pod.yaml").write_text(json.dumps(NOT_ROOT))
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("KUBECONFIG", str(kubernetes_bed.kubeconfig(user)))
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
        return ScalableSession.from_yaml(target="k")

    return make


@pytest.fixture(scope="module")
def restricted(kubernetes_bed):
    """A namespace without pods of root, in which `nobody` may do what the printed Role says."""
    label = {"pod-security.kubernetes.io/enforce": "restricted"}
    grant(kubernetes_bed, "restricted", RULES, labels=label)
    return "restricted"


@pytest.mark.parametrize("user", ["nobody", "admin"])
def test_pods_of_root_are_refused_at_once_where_they_are_forbidden(
    strict, restricted, kubernetes_bed, user
):
    session = strict(restricted, user=user)
    with pytest.raises(ProviderError, match='violates PodSecurity "restricted') as caught:
        session.start()
    assert "docs/images.md" in caught.value.hint
    assert not objects(kubernetes_bed, restricted)
    reported = {e.path for e in session.check().errors if "violates PodSecurity" in e.message}
    assert reported == {("targets", "k"), ("components", "crops")}


def test_up_reports_a_refusal_that_lasts(strict, restricted, kubernetes_bed, eventually):
    strict(restricted)
    done = program("up", "--target", "k", "--name", "strict", "--yes", here=True)
    assert done.returncode != 0
    assert "violates PodSecurity" in done.stderr
    assert program("down", "strict", "--yes").returncode == 0
    eventually(lambda: not objects(kubernetes_bed, restricted))


def test_pods_of_another_user_run_where_root_is_forbidden(strict, restricted):
    session = strict(restricted, user="nobody", more=", pod_template: pod.yaml")
    assert not session.check().errors
    with session as client:
        assert client.submit(abs, -1, tag="crops").result(timeout=120) == 1


@pytest.fixture(scope="module", params=["requests.memory", "limits.memory"])
def measured(request, kubernetes_bed):
    """A namespace whose quota takes pods only if they have a request or a limit."""
    namespace = request.param.replace(".", "-")
    kubernetes_bed.add_namespace(namespace)
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "measured"}}
    body = json.dumps(quota | {"spec": {"hard": {request.param: "10Gi"}}}).encode()
    asked(kubernetes_bed, lambda api: api.create(Resource("resourcequotas", namespace), body))
    return namespace


def test_the_scheduler_has_requests_and_a_missing_limit_is_named(strict, measured):
    session = strict(measured)
    if measured == "limits-memory":
        with pytest.raises(ProviderError, match="must specify limits.memory") as caught:
            session.start()
        assert "resources: {requests" in caught.value.hint
        assert "must specify limits.memory" in session.check().errors[0].message
        session = strict(measured, more=", resources: {limits: {memory: 1Gi}}")
    with session as client:
        assert client.submit(abs, -1, tag="crops").result(timeout=120) == 1
