"""A quota that is full before a cluster starts: the reason is told, and nothing is left."""

import json

import pytest
from place_objects import asked, objects

from scalable import ScalableSession
from scalable.errors import ProviderError
from scalable.providers.kubernetes.api import Resource
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
