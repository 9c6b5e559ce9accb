"""The directory of a user with a detached cluster, and a real Slurm."""

import pytest

from detached import place  # noqa: F401 - a fixture
from on_slurm import on_slurm, slurm  # noqa: F401 - fixtures


@pytest.fixture
def gate(tmp_path):
    """Return a path for which tasks wait; the file exists after the test at the latest."""
    path = tmp_path / "gate"
    yield path
    path.touch()


@pytest.fixture(scope="module")
def lost_soon():
    """Have workers that have left replaced soon."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("scalable.manager.units.LOST_WORKER_GRACE_S", 0.3)
        yield
