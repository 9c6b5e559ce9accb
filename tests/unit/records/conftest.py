"""A state directory for each test, and records to put there."""

import uuid

import pytest

from scalable.model import ClusterRecord


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "scalable" / "clusters"


@pytest.fixture
def record():
    def record(name="one", **more):
        values = {"id": str(uuid.uuid4()), "provider": "local", "target": "t", "project": "p"}
        values |= {"owner": "me", "created_at": "2026-01-01T00:00:00+00:00", "stage": "made"}
        return ClusterRecord(name=name, **(values | more))

    return record
