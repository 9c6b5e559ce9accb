"""Detached clusters on Google Cloud: used from any machine that has access to the project."""

import importlib

import pytest
from verbs import program, read

import scalable
from scalable.errors import UnknownClusterError
from scalable.records import find

pytest.importorskip("google.auth")

MANIFEST = """
version: 1
project: {name: harvest}
targets:
  g: {provider: gcp, region: us-central1, image: "site/scalable:1"}
components:
  crops: {cpus: 2, memory: 500M, workers: 2}
"""
WORK = """
import os
import time


def where(_):
    print("said by a call", flush=True)
    return os.uname().nodename


def after(seconds, value):
    time.sleep(seconds)
    return value
"""
NAME = "harvest-g"


@pytest.fixture(scope="module")
def place(gcp_bed, tmp_path_factory):
    """A directory with the manifest, and the credentials of a user."""
    directory = tmp_path_factory.mktemp("gcp-detached")
    (directory / "scalable.yaml").write_text(MANIFEST)
    (directory / "meadows.py").write_text(WORK)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)
        patch.syspath_prepend(directory)
        for name, text in gcp_bed.environment().items():
            patch.setenv(name, text)
        patch.setenv("GOOGLE_CLOUD_REGION", "us-central1")
        patch.setenv("XDG_STATE_HOME", str(directory / "creator"))
        yield directory


@pytest.fixture(scope="module")
def work(place):
    return importlib.import_module("meadows")


@pytest.fixture(scope="module")
def cluster(place, gcp_bed):
    """A cluster that a process started which has ended."""
    done = program("up", str(place / "scalable.yaml"), "--target", "g", "--name", NAME, "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    yield NAME
    program("down", NAME, "--yes")


@pytest.fixture
def elsewhere(cluster, tmp_path, monkeypatch):
    """Another machine: nothing is known there but the credentials."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "elsewhere"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def machines(bed, role):
    found = bed.machines().items()
    return sorted(name for name, m in found if m["labels"].get("scalable-role") == role)


def test_a_cluster_is_listed_and_shown_where_nothing_is_known_of_it(elsewhere):
    (row,) = read("list")["clusters"]
    assert (row["name"], row["provider"], row["state"]) == (NAME, "gcp", "running")
    status = read("status", NAME)
    assert status["pools"]["crops"]["running"] == 2
    assert [manager["state"] for manager in status["managers"]] == ["attached"]


def test_a_client_connects_by_the_name_and_its_code_is_carried(elsewhere, work, gcp_bed):
    with scalable.connect(NAME) as client:
        names = set(client.gather(client.map(work.where, range(8), tag="crops", pure=False)))
    assert names <= set(machines(gcp_bed, "workers"))


def test_logs_are_read_from_the_consoles_and_each_line_once(elsewhere, work):
    with scalable.connect(NAME) as client:
        assert client.submit(work.where, 0, tag="crops", pure=False).result()
    first = program("logs", NAME, "--pool", "crops").stdout
    again = program("logs", NAME, "--pool", "crops").stdout
    assert first.count("said by a call") == again.count("said by a call") >= 1
    for name in ("scheduler", "manager-g"):
        assert "is attached" in program("logs", NAME, "--worker", name).stdout


def test_pools_are_scaled_from_another_machine(elsewhere, eventually, gcp_bed):
    for count in (1, 2):
        assert program("scale", NAME, f"crops={count}").returncode == 0
        eventually(lambda n=count: read("status", NAME)["pools"]["crops"]["running"] == n)
    eventually(lambda: len(machines(gcp_bed, "workers")) == 2)


def test_another_user_of_the_project_neither_sees_nor_ends_it(elsewhere, gcp_bed, monkeypatch):
    before = gcp_bed.machines().keys()
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(gcp_bed.key("bob")))
    assert read("list")["clusters"] == []
    with pytest.raises(UnknownClusterError):
        find(NAME)
    assert "nothing to do" in program("down", NAME, "--yes").stdout
    assert read("gc", "--yes")["found"] == []
    assert gcp_bed.machines().keys() == before


def test_nothing_is_left_behind_by_down(elsewhere, gcp_bed):
    """It is the last test: the cluster ends."""
    assert program("down", NAME, "--yes").returncode == 0
    assert gcp_bed.machines() == {}
    assert read("list")["clusters"] == []
    assert "nothing to do" in program("down", NAME, "--yes").stdout
    assert "compute.firewalls.delete" in gcp_bed.calls
