import pytest

from scalable.runs.directory import RunDirectory


@pytest.fixture
def run(tmp_path):
    """A run of project "p" that is written to."""
    run = RunDirectory.create(
        "p", "local", manifest_yaml="", manifest_lock="cd" * 32, plan={}, runs_dir=tmp_path
    )
    yield run
    run.release()
