"""One scheduler on a login node with managers on Slurm, AWS and Google Cloud, of which Slurm never delivers."""

import json
from collections import Counter

import pytest
from on_aws import Client

import scalable
from verbs import program, status

MANIFEST = """\
version: 1
project: {name: tests}
targets:
  hpc: {provider: slurm, queue: batch, interface: lo, directives: [--hold], spill_after: 20s}
  aws: {provider: aws, region: us-east-1, image: "site/scalable:1"}
  gcp: {provider: gcp, region: us-central1, image: "site/scalable:1", instance_type: e2-standard-2}
managers:
  - {target: hpc, priority: 0}
  - {target: aws, priority: 1, limits: {a: 1}}
  - {target: gcp, priority: 2}
components:
  a: {cpus: 1, memory: 2G, workers: 2}
"""
CALLS = 60


@pytest.fixture
def clouds(place, aws_bed, gcp_bed, on_slurm, monkeypatch):
    """A directory of a user of both clouds and of Slurm."""
    aws_bed.settings(delay=0.05)
    for bed in (aws_bed, gcp_bed):
        for name, text in bed.environment().items():
            monkeypatch.setenv(name, text)
    place(text=MANIFEST)
    yield
    on_slurm.cancel_jobs()


@pytest.mark.usefixtures("clouds")
def test_every_call_runs_once_although_one_of_three_places_never_delivers(
    aws_bed, gcp_bed, tmp_path, eventually, caplog
):
    up = program("up", "--target", "hpc", "--name", "one", "--yes", "--no-wait")
    assert up.returncode == 0, up.stderr
    try:
        eventually(lambda: status("one")["address"], "the scheduler")
        with scalable.connect("one") as client:
            calls = client.map(abs, range(CALLS), tag="a", pure=False)
            assert client.gather(calls) == list(range(CALLS))
            eventually(lambda: status("one")["pools"]["a"]["running"] == 2, "the clouds", 90)
        shares = {m["id"]: m["pools"]["a"]["running"] for m in status("one")["managers"]}
        assert shares["hpc"] == 0
        assert shares["aws"] + shares["gcp"] == 2
        assert "JobHeldUser" in caplog.text  # the client was told why nothing came
    finally:
        program("down", "one", "--yes")
    (path,) = tmp_path.glob("runs/*/tasks.jsonl")
    states = Counter(json.loads(row)["state"] for row in path.read_text().splitlines())
    assert states["running"] == states["succeeded"] == CALLS
    assert aws_bed.machines() == []
    assert gcp_bed.machines() == {}
    made = Client(aws_bed)
    assert made.secretsmanager.list_secrets()["SecretList"] == []
    groups = made.ec2.describe_security_groups()["SecurityGroups"]
    assert {group["GroupName"] for group in groups} == {"default"}
    assert not [r for r in made.iam.list_roles()["Roles"] if "/scalable/" in r["Path"]]
