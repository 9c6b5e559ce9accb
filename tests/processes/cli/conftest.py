"""A project in a directory of its own, and the command line."""

from command_line import clean_environment, invoke, project, spawn  # noqa: F401 - fixtures
