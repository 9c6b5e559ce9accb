"""Messages between a launcher of worker processes, its fork server, and the forked workers.

A fork server is a process that has imported what workers need, and forks itself for each worker.
The launcher and the server exchange JSON datagrams over a socket pair. To ask for a fork, the
launcher sends two file descriptors: a pipe and a log file. The environment, the credentials and
the arguments of the worker go through the pipe, which the worker reads and the server does not.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

#: Module of the fork server.
SERVER_MODULE = "scalable.worker.fork_server"
#: Python code that starts the fork server. It first removes the working directory from the search
#: path, before anything is imported.
SERVER_PROGRAM = (
    f"import sys; sys.flags.safe_path or sys.path.pop(0); from {SERVER_MODULE} import main; main()"
)
#: Module in the command line of every worker, forked or not.
WORKER_MODULE = "scalable.worker.program"
#: Longest command line of a forked worker in bytes. The server's own command line is this long, and
#: the worker overwrites it.
COMMAND_LINE_BYTES = 4096
#: Length of the longest datagram in bytes.
DATAGRAM_BYTES = 4096

#: Keys of the server's first datagram: that the server is ready, or why it cannot fork.
READY = "ready"
UNFIT = "unfit"
#: Keys of requests and answers. ``FORK`` is answered with ``PID``, a process id. ``REAP`` asks for
#: the end of a process and is answered with ``CODE``, its exit code (negative for a signal).
FORK = "fork"
PID = "pid"
REAP = "reap"
CODE = "code"


@dataclass(frozen=True)
class WorkerStart:
    """The settings that a forked worker applies to its process before it does anything else.

    Attributes
    ----------
    environment
        Environment variables to set, because they differ in the fork server.
    unset
        Names of environment variables to remove.
    directory
        Working directory.
    umask
        File mode creation mask (``os.umask``).
    arguments
        Arguments of the worker program.
    config
        Configuration of a worker that ends when the pipe is closed; None for other workers.
    """

    environment: Mapping[str, str]
    unset: tuple[str, ...]
    directory: str
    umask: int
    arguments: tuple[str, ...] = ()
    config: Mapping[str, Any] | None = field(default=None, repr=False)

    def to_line(self) -> bytes:
        """Return the settings as one line of JSON."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> Self:
        """Parse the line that :meth:`to_line` returned."""
        return cls(**json.loads(line))


def worker_command(interpreter: str, arguments: tuple[str, ...] | list[str]) -> list[str]:
    """Return the command line of a worker that runs outside a container."""
    return [interpreter, "-m", WORKER_MODULE, *arguments]


def fits(command: list[str]) -> bool:
    """Return whether a command line is short enough for a forked worker (see the constant)."""
    return len(b"\0".join(map(os.fsencode, command))) < COMMAND_LINE_BYTES
