"""Copies of clusters in remote places: what is asked of a place, and when."""

import pytest

from scalable.clusters.connecting import load_security
from scalable.clusters.remote import RemoteCluster
from scalable.model import ClusterRecord
from scalable.records import ClusterDirectory, all_directories


def test_a_plain_dask_client_opens_no_tunnels_to_find_its_credentials(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    record = ClusterRecord(
        id="12345678-1234-1234-1234-123456789abc", name="n", provider="kubernetes", target="t",
        project="p", owner="o", created_at="c", remote=True, place={"namespace": "n"},
    )  # fmt: skip
    ClusterDirectory.create(record)
    ((directory,), _) = all_directories()
    assert isinstance(directory, RemoteCluster)
    monkeypatch.setattr(RemoteCluster, "scheduler", lambda _: pytest.fail("the place is asked"))
    assert load_security({"address": "tls://127.0.0.1:1"}) is None


def test_the_record_of_a_cluster_that_was_removed_is_not_copied(tmp_path):
    RemoteCluster(tmp_path / "gone").fetch_run()
