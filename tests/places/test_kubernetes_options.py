"""Everything that a target and a component may ask of a pod, on a node that is made for it."""

import asyncio
import base64
import json
import os
from pathlib import Path

import pytest

from scalable import ScalableSession
from scalable.errors import ManifestError, ProviderError
from scalable.providers.kubernetes.api import KubernetesApi, Resource

pytest.importorskip("kubernetes_asyncio")

MANIFEST = """
version: 1
project: {name: options}
targets:
  k:
    provider: kubernetes
    image: site/scalable:1
    service_account: runner
    image_pull_secrets: [registry]
    priority_class: urgent
    node_selector: {pool: models}
    tolerations: [{key: dedicated, operator: Equal, value: models, effect: NoSchedule}]
    resources: {requests: {ephemeral-storage: 1Gi}, limits: {}}
    env: {SITE: here, SEASON: wet, PRICE: '$$5 or $(SITE) or $x'}
    mounts: {"configmap://settings": /settings, "secret://login/token": /token}
    pod_template: pod.yaml
components:
  crops:
    cpus: 1
    memory: 500M
    gpus: 1
    workers: 1
    env: {SEASON: dry}
    mounts:
      pvc://inputs/2020: /inputs
      hostpath://SHARED: /shared
      emptydir://10M: /scratch
"""
TEMPLATE = {"metadata": {"annotations": {"team": "maize"}}, "spec": {"hostname": "field"}}


def look():
    """Return what a worker sees."""
    Path("/scratch/x").write_text("x")
    Path("/inputs/written").write_text("by a worker")
    return {
        "settings": Path("/settings/level").read_text(),
        "token": Path("/token").read_text(),
        "shared": Path("/shared/note").read_text(),
        "env": (os.environ["SITE"], os.environ["SEASON"], os.environ["PRICE"]),
        "account": os.path.exists("/var/run/secrets/kubernetes.io/serviceaccount/token"),
    }


@pytest.fixture(scope="module")
def ask(kubernetes_bed):
    """Return the answer of the API server to the administrator."""

    def run(method, plural, *parts, group="", namespace="default", body=None):
        async def request():
            api = KubernetesApi(None)
            try:
                resource = Resource(plural, namespace, group)
                encoded = None if body is None else json.dumps(body).encode()
                return await api.request(method, resource, *parts, body=encoded)
            finally:
                await api.close()

        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("KUBECONFIG", str(kubernetes_bed.kubeconfig("admin")))
            return asyncio.run(request())

    return run


@pytest.fixture(scope="module")
def furnished(kubernetes_bed, ask):
    """A node with a GPU and a taint, and the objects that the manifest names."""
    taint = {"key": "dedicated", "value": "models", "effect": "NoSchedule"}
    kubernetes_bed.add_node(
        "models-1", cpu="4", memory="8Gi", gpus=1, labels={"pool": "models"}, taints=[taint]
    )
    base = {"apiVersion": "v1"}
    token = base64.b64encode(b"secret").decode()
    claim = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    for plural, body in {
        "serviceaccounts": {"kind": "ServiceAccount", "metadata": {"name": "runner"}},
        "configmaps": {
            "kind": "ConfigMap",
            "metadata": {"name": "settings"},
            "data": {"level": "3"},
        },
        "secrets": {"kind": "Secret", "metadata": {"name": "login"}, "data": {"token": token}},
        "persistentvolumeclaims": {
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "inputs"},
            "spec": claim,
        },
    }.items():
        ask("POST", plural, body=base | body)
    urgent = {"kind": "PriorityClass", "metadata": {"name": "urgent"}, "value": 1000}
    group = "scheduling.k8s.io/v1"
    ask("POST", "priorityclasses", group=group, namespace="", body={"apiVersion": group} | urgent)


@pytest.fixture(scope="module")
def session(furnished, kubernetes_bed, tmp_path_factory):
    place = tmp_path_factory.mktemp("options")
    (place / "note").write_text("from the node")
    (place / "pod.yaml").write_text(json.dumps(TEMPLATE))
    (place / "scalable.yaml").write_text(MANIFEST.replace("SHARED", str(place)))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.setenv("KUBECONFIG", str(kubernetes_bed.kubeconfig()))
        session = ScalableSession.from_yaml(place / "scalable.yaml", target="k")
        try:
            session.start().wait_for_workers(1, timeout=120)
            yield session
        finally:
            session.close()


def test_a_worker_sees_every_kind_of_mount_and_its_environment(session, ask):
    assert session.client.submit(look, tag="crops").result(timeout=60) == {
        "settings": "3",
        "token": "secret",
        "shared": "from the node",
        "env": ("here", "dry", "$$5 or $(SITE) or $x"),
        "account": True,
    }


def test_pods_run_where_and_as_the_target_says(session, ask):
    pods = ask("GET", "pods")["items"]
    ours = [p for p in pods if session.cluster.site.frame.cluster_id in p["metadata"]["name"]]
    assert len(ours) == 2
    for pod in ours:
        spec = pod["spec"]
        assert spec["nodeName"] == "models-1"
        assert spec["priority"] == 1000
        assert spec["serviceAccountName"] == "runner"
        assert spec["imagePullSecrets"] == [{"name": "registry"}]
        assert spec["hostname"] == "field"
        assert pod["metadata"]["annotations"]["team"] == "maize"
        (container,) = spec["containers"]
        assert container["resources"]["requests"]["ephemeral-storage"] == "1Gi"
    asked = [pod["spec"]["containers"][0]["resources"]["requests"] for pod in ours]
    assert sorted(each.get("nvidia.com/gpu", "0") for each in asked) == ["0", "1"]


def test_a_worker_without_a_gpu_waits_and_says_so(session, eventually):
    session.scale("crops", 2)
    words = "no node has room: too few gpus"
    eventually(lambda: words in (session.cluster.pools["crops"].waiting or ""))
    session.scale("crops", 1)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("tolerations: []", "taint 'dedicated: models' is not tolerated"),
        ("node_selector: {pool: none}", "no node has the labels of node_selector"),
    ],
)
def test_a_target_without_its_toleration_or_label_finds_no_node(
    furnished, kubernetes_bed, tmp_path, monkeypatch, change, words
):
    monkeypatch.setenv("KUBECONFIG", str(kubernetes_bed.kubeconfig()))
    key = change.partition(":")[0]
    lines = [
        f"    {change}" if line.strip().startswith(f"{key}:") else line
        for line in MANIFEST.replace("image: site", "start_timeout: 2s\n    image: site").split(
            "\n"
        )
        if "pod_template" not in line
    ]
    (tmp_path / "scalable.yaml").write_text("\n".join(lines).replace("SHARED", "/"))
    with pytest.raises(ProviderError) as caught:
        ScalableSession.from_yaml(tmp_path / "scalable.yaml", target="k").start()
    assert words in caught.value.message


def test_a_clash_of_the_template_names_the_path_before_anything_is_created(
    furnished, kubernetes_bed, tmp_path, monkeypatch
):
    monkeypatch.setenv("KUBECONFIG", str(kubernetes_bed.kubeconfig()))
    (tmp_path / "pod.yaml").write_text(json.dumps({"spec": {"priorityClassName": "low"}}))
    (tmp_path / "scalable.yaml").write_text(MANIFEST.replace("SHARED", "/"))
    kubernetes_bed.requests(reset=True)
    with pytest.raises(ManifestError, match="spec.priorityClassName is 'low'"):
        ScalableSession.from_yaml(tmp_path / "scalable.yaml", target="k").start()
    assert not any(request.startswith("create") for request in kubernetes_bed.requests())
