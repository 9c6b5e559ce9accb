"""A project in a directory of its own, and the command line."""

from command_line import (  # noqa: F401 - fixtures
    clean_environment,
    complete,
    invoke,
    project,
    recorded,
    spawn,
)
