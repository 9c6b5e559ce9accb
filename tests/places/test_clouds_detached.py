"""Detached clusters on clouds: the same for Fargate, EC2 and Google Cloud."""

import pytest
from cloud_places import on

from scalable.client.attached import AttachedCluster
from verbs import program, read

NAME = "harvest-there"


@pytest.fixture(scope="module")
def cluster(cloud_place, cloud):
    """A cluster that a process started which has ended."""
    manifest = str(cloud_place / "scalable.yaml")
    done = program("up", manifest, "--target", "there", "--name", NAME, "--yes")
    assert done.returncode == 0, done.stderr
    yield NAME
    program("down", NAME, "--yes")


@pytest.fixture
def elsewhere(cluster, tmp_path, monkeypatch):
    """Another machine: nothing is known there but the credentials."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "elsewhere"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@on("aws-fargate", "gcp")
def test_a_cluster_is_listed_where_nothing_is_known_of_it(cloud, elsewhere):
    (row,) = read("list")["clusters"]
    assert (row["name"], row["provider"], row["state"]) == (NAME, cloud.provider, "running")


@on("aws-fargate", "gcp")
def test_a_client_connects_by_the_name_from_elsewhere(elsewhere, cloud_work):
    with AttachedCluster.from_name(NAME) as attached, attached.get_client() as client:
        assert client.submit(cloud_work.season, tag="crops").result(120) == "dry"


@on("aws-fargate")
def test_pools_are_scaled_from_another_machine(cloud, elsewhere, eventually):
    def running():
        pool = read("status", NAME)["pools"]["crops"]
        return pool["running"] if pool["launching"] == pool["draining"] == 0 else None

    done = program("scale", NAME, "crops=1")
    assert done.returncode == 0, done.stderr
    eventually(lambda: running() == 1, timeout=120)
    assert program("scale", NAME, "crops=3").returncode == 0
    eventually(lambda: running() == 3, timeout=120)


@on("aws-fargate")
def test_logs_are_read_from_elsewhere(elsewhere):
    done = program("logs", NAME, "--worker", "scheduler")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("the scheduler listens at") == 1
    assert program("logs", NAME, "--worker", "scheduler").stdout.count("scheduler listens at") == 1


@on("aws-fargate")
def test_another_user_of_the_account_neither_sees_nor_ends_it(cloud, elsewhere, monkeypatch):
    cloud.use(monkeypatch, "bob")
    monkeypatch.setenv("XDG_STATE_HOME", str(elsewhere / "bob"))
    assert read("list")["clusters"] == []
    assert "there is no cluster" in program("down", NAME, "--yes").stdout
    assert cloud.machines() == []
    cloud.use(monkeypatch, "alice")
    assert cloud.machines("scheduler")


@on("aws-fargate")
def test_a_manager_that_died_is_started_again_and_takes_over_the_workers(
    cloud, elsewhere, eventually
):
    (manager,) = cloud.machines("manager")
    workers = {m.id for m in cloud.machines("workers")}
    assert workers  # they belong to the user, although a manager's account has started them
    cloud.kill(manager)
    eventually(lambda: manager.id not in {m.id for m in cloud.machines("manager")})
    done = program("manager", "restart", NAME)
    assert done.returncode == 0, done.stderr
    eventually(lambda: len(cloud.machines("manager")) == 1)
    assert {m.id for m in cloud.machines("workers")} == workers


@on("aws-fargate", "gcp")
def test_down_from_another_machine_leaves_nothing_anywhere(cloud, elsewhere):
    assert program("down", NAME, "--yes").returncode == 0
    assert cloud.machines() == []
    assert cloud.files() == []
    assert "nothing to do" in program("down", NAME, "--yes").stdout
    assert read("list")["clusters"] == []
