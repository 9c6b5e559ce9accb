"""Messages between a launcher of worker processes, its fork server, and the forked workers.

The launcher and the server exchange datagrams of JSON over a socket pair. The launcher asks for a
fork by sending two file descriptors: a pipe and a log file. What the worker needs, credentials
and environment included, goes through the pipe: only the worker reads it, never the server.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

#: Module of the server.
SERVER_MODULE = "scalable.worker.fork_server"
#: Program text that starts it: the working directory leaves the search path before any import.
SERVER_PROGRAM = (
    f"import sys; sys.flags.safe_path or sys.path.pop(0); from {SERVER_MODULE} import main; main()"
)
#: Module that the command line of a forked worker names, as that of any other worker does.
WORKER_MODULE = "scalable.worker.program"
#: Bytes that the command line of a forked worker may have: memory reserved by the server's own.
COMMAND_LINE_BYTES = 4096
#: Bytes of the longest datagram.
DATAGRAM_BYTES = 4096

#: Keys of the server's first datagram: the server is ready, or the reason why it cannot fork.
READY = "ready"
UNFIT = "unfit"
#: Keys of requests and of their answers: fork (answered with the process id), and reap a process
#: (answered with its exit code, negative for a signal).
FORK = "fork"
PID = "pid"
REAP = "reap"
CODE = "code"


@dataclass(frozen=True)
class WorkerStart:
    """Properties of a process that a forked worker takes on before anything else.

    Attributes
    ----------
    environment
        Variables to set: those that differ from the server's.
    unset
        Variables to remove.
    directory
        Working directory.
    umask
        Mask of file permissions.
    arguments
        Arguments of the worker program.
    config
        Configuration of a worker that has the pipe as its lifeline; None for other workers.
    """

    environment: Mapping[str, str]
    unset: tuple[str, ...]
    directory: str
    umask: int
    arguments: tuple[str, ...] = ()
    config: Mapping[str, Any] | None = field(default=None, repr=False)

    def to_line(self) -> bytes:
        """Return the properties as one line of JSON."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> Self:
        """Read what :meth:`to_line` wrote."""
        return cls(**json.loads(line))


def worker_command(interpreter: str, arguments: tuple[str, ...] | list[str]) -> list[str]:
    """Return the command line of a worker outside a container."""
    return [interpreter, "-m", WORKER_MODULE, *arguments]


def fits(command: list[str]) -> bool:
    """Return whether a forked worker can show a command line as its own."""
    return len(b"\0".join(map(os.fsencode, command))) < COMMAND_LINE_BYTES
