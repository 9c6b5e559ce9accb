"""The directory of a user with a detached cluster, and a real Slurm."""

from detached import place  # noqa: F401 - a fixture
from on_slurm import on_slurm, slurm  # noqa: F401 - fixtures
