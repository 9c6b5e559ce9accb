"""JSON datagrams between a worker launcher, its fork server and forked workers.

A fork request passes two file descriptors: a log file, and a pipe with the worker's environment,
credentials and arguments. Only the worker reads the pipe.
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
#: Maximum bytes of a forked worker's command line. The server's own command line has this size, and
#: the worker overwrites it.
COMMAND_LINE_BYTES = 4096
#: Maximum bytes of a datagram.
DATAGRAM_BYTES = 4096

#: Keys of the server's first datagram: that the server is ready, or why it cannot fork.
READY = "ready"
UNFIT = "unfit"
#: Keys of requests and answers. ``FORK`` is answered with ``PID``, a process id. ``REAP`` waits for
#: a process and is answered with ``CODE``, its exit code (negative for a signal).
FORK = "fork"
PID = "pid"
REAP = "reap"
CODE = "code"


@dataclass(frozen=True)
class WorkerStart:
    """Settings that a forked worker applies to its process first."""

    #: Variables whose values differ in the fork server.
    environment: Mapping[str, str]
    unset: tuple[str, ...]
    directory: str
    umask: int
    arguments: tuple[str, ...] = ()
    #: Configuration of a worker that exits when the pipe is closed. None for other workers.
    config: Mapping[str, Any] | None = field(default=None, repr=False)

    def to_line(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> Self:
        return cls(**json.loads(line))


def worker_command(interpreter: str, arguments: tuple[str, ...] | list[str]) -> list[str]:
    """Return the command line of a worker that runs outside a container."""
    return [interpreter, "-m", WORKER_MODULE, *arguments]


def fits(command: list[str]) -> bool:
    """Return whether a command line fits into ``COMMAND_LINE_BYTES``."""
    return len(b"\0".join(map(os.fsencode, command))) < COMMAND_LINE_BYTES
