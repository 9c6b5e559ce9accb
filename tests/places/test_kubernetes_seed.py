"""The target `gke` of the documentation of providers, as it stands there, and the code that uses it."""

import os
import time

import pytest

from scalable import ScalableSession

pytest.importorskip("kubernetes_asyncio")

#: The target is written as in the documentation; any image is this machine on the test bed.
MANIFEST = """\
version: 1
project: {name: forecast}
targets:
  gke:
    provider: kubernetes
    namespace: scalable
    image: ghcr.io/jgcri/scalable-worker:latest
    n_workers: 4
    adaptive:
      minimum: 1
      maximum: 16
components:
  demeter: {cpus: 1, memory: 500M}
"""


def run_demeter_scenario(seconds):
    time.sleep(seconds)
    return os.uname().nodename


@pytest.fixture(scope="module")
def namespace(kubernetes_bed):
    """The namespace that the target names."""
    kubernetes_bed.add_namespace("scalable")


@pytest.mark.parametrize("calls", [6, pytest.param(40, marks=pytest.mark.slow)])
def test_the_target_of_the_documentation_grows_with_its_calls_and_shrinks_without(
    kubernetes_bed, namespace, tmp_path, monkeypatch, eventually, calls
):
    monkeypatch.setenv("KUBECONFIG", str(kubernetes_bed.kubeconfig("admin")))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scalable.yaml").write_text(MANIFEST)

    session = ScalableSession.from_yaml("./scalable.yaml", target="gke")
    plan = session.plan(dry_run=True)
    assert "count=4" in str(plan.scale_plan)
    client = session.start(plan)
    try:
        scenarios = [1.0] * calls
        futures = [client.submit(run_demeter_scenario, s, tag="demeter") for s in scenarios]
        wanted = eventually(lambda: (n := session.cluster.pools["demeter"].wanted) > 4 and n)
        assert wanted <= 16
        results = client.gather(futures)
        assert len(set(results)) > 1
        del futures
        eventually(lambda: session.cluster.pools["demeter"].running == 1, timeout=120)
        assert session.cluster.pools["demeter"].wanted == 1
    finally:
        session.close()
