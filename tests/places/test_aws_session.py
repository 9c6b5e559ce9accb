"""Sessions on AWS: the scheduler and the workers are tasks of Fargate in the test bed."""

import importlib
import json

import pytest

pytest.importorskip("aiobotocore")

from on_aws import Client

from scalable import ScalableSession

MANIFEST = """
version: 1
project: {name: harvest}
targets:
  f:
    provider: aws
    region: us-east-1
    cluster_type: fargate
    image: site/scalable:1
  e:
    provider: aws
    region: us-east-1
    cluster_type: ec2
    image: site/scalable:1
components:
  crops: {cpus: 1, memory: 2G, workers: 2, env: {SEASON: dry}, secrets: {API_KEY: {env: MY_KEY}}}
  statistics: {cpus: 0.5, memory: 1G, workers: 1}
"""
VALUE = "s3cret-5f1c"
#: A module of the workflow: no file of this machine is on the machines, so it has to be carried.
WORK = """
import os
from pathlib import Path


def where():
    return os.uname().nodename


def season():
    return os.environ["SEASON"]


def key():
    return os.environ.get("API_KEY")


def told():
    texts = [Path(f"/proc/{p}/environ") for p in os.listdir("/proc") if p.isdigit()]
    return [str(t) for t in texts if b"SCALABLE_FILES=" in t.read_bytes()], sorted(os.environ)
"""


@pytest.fixture(scope="module")
def place(aws_bed, tmp_path_factory):
    """A directory with the manifest, and the credentials of a user."""
    directory = tmp_path_factory.mktemp("aws")
    (directory / "scalable.yaml").write_text(MANIFEST)
    (directory / "farms.py").write_text(WORK)
    aws_bed.settings(delay=0.05)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)
        patch.syspath_prepend(directory)
        patch.setenv("MY_KEY", VALUE)
        for name, text in aws_bed.environment().items():
            patch.setenv(name, text)
        yield directory


@pytest.fixture(scope="module")
def session(place):
    """A session with all its workers."""
    session = ScalableSession.from_yaml(place / "scalable.yaml", target="f")
    client = session.start()
    try:
        client.wait_for_workers(3, timeout=120)
        yield session
    finally:
        session.close()


def test_calls_run_in_tasks_of_their_component(session, aws_bed):
    farms = importlib.import_module("farms")
    client = session.client
    crops = {client.submit(farms.where, tag="crops", pure=False).result(60) for _ in range(3)}
    other = client.submit(farms.where, tag="statistics").result(60)
    assert other not in crops
    assert client.submit(farms.season, tag="crops").result(60) == "dry"
    assert len(aws_bed.machines()) == 4


def test_no_process_of_a_worker_shows_the_files_of_its_cluster(session):
    farms = importlib.import_module("farms")
    shown, variables = session.client.submit(farms.told, tag="crops").result(60)
    assert shown == []
    assert not [name for name in variables if "SCALABLE_FILES" in name]
    assert "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI" not in variables


def test_secrets_are_in_the_store_of_the_cloud_alone(session, aws_bed, place):
    farms = importlib.import_module("farms")
    client, ecs = session.client, Client(aws_bed).ecs
    assert client.submit(farms.key, tag="crops").result(60) == VALUE
    assert client.submit(farms.key, tag="statistics").result(60) is None
    names = ecs.list_task_definitions()["taskDefinitionArns"]
    assert names
    definitions = [ecs.describe_task_definition(taskDefinition=name) for name in names]
    assert VALUE not in str(definitions)
    held = [p for p in place.rglob("*") if p.is_file() and VALUE.encode() in p.read_bytes()]
    assert held == []


def test_workers_of_a_pool_share_an_instance(place, aws_bed, eventually):
    farms = importlib.import_module("farms")
    with ScalableSession.from_yaml(place / "scalable.yaml", target="e") as client:
        client.wait_for_workers(3, timeout=120)
        crops = {client.submit(farms.where, tag="crops", pure=False).result(60) for _ in range(4)}
        assert len(crops) == 1
        assert client.submit(farms.season, tag="crops").result(60) == "dry"
        assert client.submit(farms.key, tag="crops").result(60) == VALUE
        shown, variables = client.submit(farms.told, tag="crops").result(60)
        assert shown == []
        assert "SCALABLE_FILES" not in variables
        assert len([m for m in aws_bed.machines() if m["kind"] == "instance"]) == 3
    eventually(lambda: not [m for m in aws_bed.machines() if m["kind"] == "instance"])


def test_a_short_run_has_the_cost_of_all_its_machines(place, eventually):
    session = ScalableSession.from_yaml(place / "scalable.yaml", target="f")

    def pools():
        return {tag: pool["cost"] for tag, pool in session.status()["cost"]["pools"].items()}

    with session as client:
        assert client.submit(abs, -1, tag="crops").result(60) == 1
        eventually(lambda: all(pools().values()))
        before = pools()
    cost = json.loads((session.run_path / "summary.json").read_text())["cost"]
    assert cost["scheduler"] > 0
    assert all(cost["by_tag"][tag] >= before[tag] for tag in ("crops", "statistics"))
    text = (session.run_path / "workers.jsonl").read_text()
    rows = [json.loads(line) for line in text.splitlines()]
    assert len({row["worker"] for row in rows if row["event"] == "billed"}) == 4
