"""Sessions on Kubernetes whose manager is a pod beside the scheduler."""

import importlib
import subprocess
import sys

import pytest

from scalable import ScalableSession
from scalable.providers.registry import get_provider
from scalable.runs.reading import read_run

pytest.importorskip("kubernetes_asyncio")

MANIFEST = """
version: 1
project: {name: placed}
targets:
  k: {provider: kubernetes, image: "site/scalable:1", manager: there, abandoned_after: 20s, adaptive: {maximum: 4}}
components:
  crops: {cpus: 1, memory: 400M, workers: 1}
  maps: {cpus: 1, memory: 400M, workers: {minimum: 0, maximum: 2}}
  giants: {cpus: 4000, memory: 400M, workers: 0}
"""
WORK = """
def double(x):
    return 2 * x
"""


@pytest.fixture(scope="module")
def place(kubernetes_bed, tmp_path_factory):
    """A directory with the manifest, and the kubeconfig of a user."""
    directory = tmp_path_factory.mktemp("placed")
    (directory / "scalable.yaml").write_text(MANIFEST)
    (directory / "placed_work.py").write_text(WORK)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)
        patch.syspath_prepend(directory)
        patch.setenv("KUBECONFIG", str(kubernetes_bed.kubeconfig()))
        patch.setenv("XDG_STATE_HOME", str(directory / "state"))
        yield directory


@pytest.fixture(scope="module")
def session(place):
    session = ScalableSession.from_yaml(place / "scalable.yaml", target="k")
    try:
        session.start()
        yield session
    finally:
        session.close()


def programs(session):
    provider = get_provider("kubernetes")
    place = provider.remote(provider.place_of(session.spec))
    return {name: its.state for name, its in place.programs(session.cluster.id).items()}


def test_the_manager_is_a_pod_and_calls_run_as_with_one_here(session, eventually):
    both = {"scheduler": "running", "k": "running"}
    eventually(lambda: programs(session) == both)  # a pod's phase may follow its program late
    work = importlib.import_module("placed_work")
    assert session.client.submit(work.double, 21, tag="crops").result(150) == 42
    eventually(lambda: "double" in [row["task_name"] for row in read_run(session.run_path).tasks])


def test_an_adaptive_pool_follows_its_load(session):
    work = importlib.import_module("placed_work")
    assert session.cluster.pools["maps"].wanted == 0
    assert session.client.submit(work.double, 4, tag="maps").result(150) == 8


def test_a_pool_that_does_not_come_up_says_why(session, eventually):
    session.scale("giants", 1)
    eventually(lambda: "cpu" in str(session.cluster.pools["giants"].waiting), timeout=120)
    session.scale("giants", 0)
    # The adaptive pool's policy decides in between.
    changes = [row["to"] for row in session.scaling_history if row["tag"] == "giants"]
    assert changes[-2:] == [1, 0]


def test_closing_ends_the_manager_with_the_cluster(session):
    provider, cluster = get_provider("kubernetes"), session.cluster.id
    place = provider.remote(provider.place_of(session.spec))
    session.close()
    assert place.programs(cluster) == {}
    assert place.logs(cluster, {}) == {}


CREATOR = """
import os
import signal

from scalable import ScalableSession

session = ScalableSession.from_yaml("scalable.yaml", target="k")
session.start()
print(session.cluster.id, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_creator_that_is_killed_takes_its_manager_and_its_workers_with_it(place, eventually):
    text = MANIFEST.replace("abandoned_after: 20s", "abandoned_after: 3s")
    (place / "scalable.yaml").write_text(text)
    done = subprocess.run(
        [sys.executable, "-c", CREATOR], check=False, stdout=subprocess.PIPE, text=True, timeout=170
    )
    cluster = done.stdout.strip()
    provider = get_provider("kubernetes")
    found = provider.remote({"context": "", "namespace": "default"})
    assert cluster

    def running():
        return [its for its in found.programs(cluster).values() if its.state == "running"]

    eventually(lambda: not running(), timeout=120)
