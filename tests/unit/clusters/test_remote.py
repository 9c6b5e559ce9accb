"""Copies of clusters in remote places: what is asked of a place, and when."""

import pytest

from scalable.clusters.connecting import load_security
from scalable.clusters.remote import RemoteCluster
from scalable.records import ClusterDirectory, all_directories
from unit.made_records import made_record


def test_a_plain_dask_client_opens_no_tunnels_to_find_its_credentials(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    record = made_record(provider="kubernetes", remote=True, place={"namespace": "n"})
    ClusterDirectory.create(record)
    ((directory,), _) = all_directories()
    assert isinstance(directory, RemoteCluster)
    monkeypatch.setattr(RemoteCluster, "scheduler", lambda _: pytest.fail("the place is asked"))
    assert load_security({"address": "tls://127.0.0.1:1"}) is None


def test_the_record_of_a_cluster_that_was_removed_is_not_copied(tmp_path):
    RemoteCluster(tmp_path / "gone").fetch_run()
