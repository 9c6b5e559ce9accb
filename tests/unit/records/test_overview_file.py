"""The file in which sessions show their clusters."""

import fcntl
import json

import pytest

from scalable.model.overview import Overview, TaskCounts, TaskOverview
from scalable.records.overview_file import OverviewFile


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "shown"
    path.touch()
    return OverviewFile(path)


def overview(done):
    return Overview(at=1.0, tasks=(TaskOverview("fit", "big", TaskCounts(done=done)),))


def test_a_shorter_text_leaves_nothing_of_a_longer_one(file, tmp_path):
    file.show("a", Overview(at=1.0, cluster={"name": "x" * 10_000}))
    file.show("a", Overview(at=1.0))
    assert json.loads((tmp_path / "shown").read_text())["a"]["overview"]["cluster"] == {}


def test_a_reader_does_not_wait_for_a_writer(file, tmp_path):
    file.show("a", overview(1))
    with (tmp_path / "shown").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert file.read() is None
    assert file.read() is not None


def test_a_file_that_was_torn_is_written_anew(file, tmp_path):
    (tmp_path / "shown").write_text('{"a": {"overv')
    assert file.read() is None
    file.show("b", overview(1))
    assert list(file.read()) == ["b"]


def test_a_file_that_is_gone_is_not_made_again(file, tmp_path):
    (tmp_path / "shown").unlink()
    assert file.read() is None
    with pytest.raises(FileNotFoundError):
        file.show("a", overview(1))
    assert not (tmp_path / "shown").exists()
