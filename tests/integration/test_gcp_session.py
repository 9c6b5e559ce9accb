"""Sessions on Google Cloud: the scheduler and the workers are instances of the test bed."""

import importlib

import pytest

from scalable import ScalableSession

MANIFEST = """
version: 1
project: {name: harvest}
targets:
  g:
    provider: gcp
    region: us-central1
    image: site/scalable:1
    instance_type: e2-standard-4
components:
  crops: {cpus: 1, memory: 500M, workers: 2, env: {SEASON: dry}}
  statistics: {cpus: 3, memory: 400M, workers: 1}
"""
#: A module of the workflow: no file of this machine is on the machines, so it has to be carried.
WORK = """
import os


def where():
    return os.uname().nodename


def season():
    return os.environ["SEASON"]
"""


@pytest.fixture(scope="module")
def place(gcp_bed, tmp_path_factory):
    """A directory with the manifest, and the credentials of a user."""
    directory = tmp_path_factory.mktemp("gcp")
    (directory / "scalable.yaml").write_text(MANIFEST)
    (directory / "fields.py").write_text(WORK)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)
        patch.syspath_prepend(directory)
        for name, text in gcp_bed.environment().items():
            patch.setenv(name, text)
        yield directory


@pytest.fixture(scope="module")
def session(place):
    """A session with all its workers."""
    session = ScalableSession.from_yaml(place / "scalable.yaml", target="g")
    client = session.start()
    try:
        client.wait_for_workers(3, timeout=120)
        yield session
    finally:
        session.close()


def test_calls_run_on_machines_of_their_component(session, gcp_bed):
    fields = importlib.import_module("fields")
    client = session.client
    crops = {client.submit(fields.where, tag="crops", pure=False).result(60) for _ in range(3)}
    other = client.submit(fields.where, tag="statistics").result(60)
    machines = gcp_bed.machines()
    assert crops <= machines.keys()
    assert other in machines
    assert other not in crops
    assert client.submit(fields.season, tag="crops").result(60) == "dry"
    assert {m["type"] for n, m in machines.items() if "scheduler" not in n} == {"e2-standard-4"}


def test_two_workers_share_a_machine_that_holds_them(session, gcp_bed):
    roles = [m["labels"]["scalable-role"] for m in gcp_bed.machines().values()]
    assert sorted(roles) == ["scheduler", "workers", "workers"]
