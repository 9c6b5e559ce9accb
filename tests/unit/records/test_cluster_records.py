"""Clusters on disk: who may read them, how they are found, in which state they are."""

import multiprocessing

import pytest

from scalable.errors import ClusterError, UnknownClusterError
from scalable.files import write_private
from scalable.records import ClusterDirectory, all_directories, find
from scalable.records.directory import SILENT_S, Sight, state_of
from unit.made_records import made_record as record


def test_only_the_owner_can_enter(state):
    directory = ClusterDirectory.create(record(), manifest_yaml="secret: 1")
    directory.write_pem("-----BEGIN ca", "-----BEGIN cert", "-----BEGIN key")
    assert state.parent.stat().st_mode & 0o777 == 0o700
    assert directory.path.stat().st_mode & 0o777 == 0o700
    files = [path for path in directory.path.rglob("*") if path.is_file()]
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    assert directory.pem()["tls_worker_key"] == "-----BEGIN key"


def test_names_are_unique_among_clusters_that_are_not_embedded():
    ClusterDirectory.create(record("one", embedded=True))
    ClusterDirectory.create(record("one"))
    with pytest.raises(ClusterError, match="a cluster 'one' already exists"):
        ClusterDirectory.create(record("one"))


def _create(name):
    try:
        ClusterDirectory.create(record(name))
    except ClusterError:
        return 0
    return 1


def test_of_many_that_take_a_name_at_once_one_wins():
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        assert sum(pool.map(_create, ["same"] * 8)) == 1


def test_finding(state):
    first = ClusterDirectory.create(record("one", id="aaaa1111-0000-4000-8000-000000000000"))
    twin = ClusterDirectory.create(
        record("one", id="bbbb2222-0000-4000-8000-000000000000", embedded=True, provider="slurm")
    )
    assert find("local/one").path == first.path
    assert find("bbbb").path == twin.path
    with pytest.raises(ClusterError, match=r"local/one \(aaaa1111\), slurm/one \(bbbb2222\)"):
        find("one")
    with pytest.raises(UnknownClusterError, match="there is no cluster 'two' .known clusters: one"):
        find("two")
    (state / "junk").mkdir()
    broken = state / "broken"
    broken.mkdir()
    write_private(broken / "record.json", "[]")
    directories, errors = all_directories()
    assert {d.path for d in directories} == {first.path, twin.path}
    assert len(errors) == 1
    assert "broken/record.json" in errors[0]


STATUS = {"written_at": 100.0, "state": "running", "reason": None, "pools": {}, "managers": []}


@pytest.mark.parametrize(("stage", "status", "sight", "now", "state"), [
    ("creating", None, None, 100, "creating"),
    ("made", None, None, 100, "starting"),
    ("made", STATUS, Sight(True), 101, "running"),
    ("creating", STATUS, Sight(True), 101, "running"),
    ("made", STATUS, Sight(False), 101, "failed"),
    ("made", STATUS, Sight(True), 101 + SILENT_S, "unreachable"),
    ("made", STATUS, Sight(None), 101 + SILENT_S, "unreachable"),
    ("made", STATUS, Sight(False, another=True), 101, "stale"),
    ("deleting", STATUS, Sight(True), 101, "deleting"),
    ("deleting", STATUS, Sight(False), 101, "deleting"),
    ("deleting", STATUS, Sight(False, another=True), 101, "stale"),
])  # fmt: skip
def test_states(stage, status, sight, now, state):
    assert state_of(record(stage=stage), status, sight, now)[0] == state
