"""A state directory for each test, and records to put there."""

import functools

import pytest

from unit.made_records import made_record


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "scalable" / "clusters"


@pytest.fixture
def record():
    return functools.partial(made_record, stage="made")
