"""Sessions on clouds: the same for Fargate, EC2 and Google Cloud."""

import json
import subprocess
import sys

import pytest
from cloud_places import COMPONENTS, SECRET, on

from scalable import ScalableSession
from scalable.clusters import ending
from scalable.runs.reading import read_run
from verbs import program


@pytest.fixture(scope="module")
def session(cloud_place, cloud):
    """A session with all its workers, which starts although every third call is throttled.

    The answers to the first requests of machines are lost.
    """
    cloud.bed.throttle(every=3)
    cloud.lose_answers()
    session = ScalableSession.from_yaml(cloud_place / "scalable.yaml", target="there")
    try:
        client = session.start()
        client.wait_for_workers(3, timeout=170)
        cloud.clear()
        yield session
    finally:
        cloud.clear()
        session.close()


def test_throttled_calls_and_lost_answers_make_no_machine_twice(cloud, session):
    assert len(cloud.machines("scheduler")) == 1
    assert sum(len(m.units) for m in cloud.machines("workers")) == 3


def test_calls_run_on_machines_of_their_component(cloud, session, cloud_work):
    found = set(session.client.gather(session.client.map(cloud_work.where, range(20), tag="crops")))
    assert found <= {m.address for m in cloud.machines("workers", "crops")}
    assert session.client.submit(cloud_work.season, tag="crops").result(60) == "dry"
    assert session.client.submit(cloud_work.beside, tag="statistics").result(60) == "1,2"


def test_calls_are_in_the_record_of_the_session(session, cloud_work, eventually):
    assert (
        session.client.submit(cloud_work.after, 0, "recorded", tag="crops").result(60) == "recorded"
    )
    eventually(lambda: "after" in [row["task_name"] for row in read_run(session.run_path).tasks])


def test_no_credential_is_in_the_environment_or_the_command_line(session, cloud_work):
    told = session.client.submit(cloud_work.environment, tag="crops").result(60)
    text = json.dumps(told)
    assert "PRIVATE KEY" not in text
    assert "BEGIN CERT" not in text


def test_secrets_reach_their_pool_and_no_file_or_machine_shows_them(
    cloud, session, cloud_work, cloud_place
):
    assert session.client.submit(cloud_work.key, tag="crops").result(60) == SECRET
    assert session.client.submit(cloud_work.key, tag="statistics").result(60) is None
    if (
        cloud.provider == "gcp"
    ):  # on AWS, the definitions of tasks are checked in test_aws_session.py
        listed = cloud.asked(lambda asked: asked.api.compute("GET", "aggregated/instances"))
        assert "metadata" in str(listed)
        assert SECRET not in str(listed)
    held = [f for f in cloud_place.rglob("*") if f.is_file() and SECRET.encode() in f.read_bytes()]
    assert held == []


@on("aws-ec2")
def test_pools_grow_and_shrink_and_keep_their_results(cloud, session, cloud_work, eventually):
    client = session.client
    kept = client.map(cloud_work.after, [0.0] * 8, range(8), tag="crops", pure=False)
    assert client.gather(kept) == list(range(8))
    session.scale("crops", 3)
    eventually(lambda: session.cluster.pools["crops"].running == 3, timeout=120)
    session.scale("crops", 1)
    eventually(lambda: len(session.cluster.site.launcher.observe()) == 2, timeout=120)
    assert client.gather(kept) == list(range(8))
    session.scale("crops", 2)
    eventually(lambda: session.cluster.pools["crops"].running == 2, timeout=120)


@on("aws-fargate")
def test_a_machine_that_dies_is_replaced_and_its_call_runs_again(
    cloud, session, cloud_work, eventually
):
    (before,) = cloud.machines("workers", "statistics")
    call = session.client.submit(cloud_work.after, 3, "done", tag="statistics")
    eventually(lambda: session.client.processing() and call.status == "pending")
    cloud.kill(before)
    assert call.result(timeout=170) == "done"
    eventually(lambda: [m.id for m in cloud.machines("workers", "statistics")] != [before.id])


def test_a_place_without_capacity_says_so_in_plain_words(cloud, session, eventually):
    def words():
        return session.cluster.pools["crops"].waiting

    eventually(lambda: session.cluster.pools["crops"].running == 2)
    cloud.no_capacity()
    try:
        session.scale("crops", 6)
        eventually(lambda: words() and "us-" in words(), what="a reason with zones")
        assert "_" not in words(), "not the cloud's code"
    finally:
        cloud.clear()
    session.scale("crops", 2)
    eventually(lambda: session.cluster.pools["crops"].launching == 0)


def test_closing_removes_everything(cloud, session):
    session.close()
    assert cloud.machines() == []
    assert cloud.files() == []


@on("gcp")
def test_a_creator_that_is_killed_leaves_no_machine_and_prune_removes_files(
    cloud, cloud_place, tmp_path, eventually, monkeypatch
):
    (tmp_path / "scalable.yaml").write_text(cloud.manifest(COMPONENTS, abandoned_after="5s"))
    script = (
        "from scalable import ScalableSession\n"
        "session = ScalableSession.from_yaml('scalable.yaml', target='there')\n"
        "client = session.start()\n"
        "client.wait_for_workers(1, timeout=170)\n"
        "print('up', flush=True)\n"
        "import time; time.sleep(600)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout.readline() == "up\n"
        assert cloud.machines("workers")
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    eventually(lambda: cloud.machines() == [], timeout=120)
    monkeypatch.setattr("scalable.providers.remote.cloud_place.MACHINELESS_S", 0.0)
    ending.prune(dry_run=False)
    assert cloud.files() == []


def test_wrong_credentials_are_one_line_and_leave_nothing(
    cloud, cloud_place, tmp_path, monkeypatch
):
    (tmp_path / "scalable.yaml").write_text(cloud.manifest(COMPONENTS))
    cloud.wrong(monkeypatch, tmp_path)
    done = program("up", str(tmp_path / "scalable.yaml"), "--target", "there", "--yes", here=True)
    assert done.returncode == 4, done.stderr
    assert "Traceback" not in done.stderr


@on("aws-fargate", "gcp")
def test_a_start_that_is_refused_in_the_middle_leaves_nothing(cloud, cloud_place, tmp_path):
    (tmp_path / "scalable.yaml").write_text(cloud.manifest(COMPONENTS))
    cloud.deny()
    try:
        done = program(
            "up", str(tmp_path / "scalable.yaml"), "--target", "there", "--yes", here=True
        )
    finally:
        cloud.deny(denied=False)
    assert done.returncode == 4, done.stderr
    assert "continues" not in done.stderr
    assert cloud.files() == []
