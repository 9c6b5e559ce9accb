"""The directory of a user with a detached cluster."""

from detached import place  # noqa: F401 - a fixture
