"""Launcher's side of the fork server: starts the server, requests forks, and stops it.
A fork server has loaded the worker's modules, so forking is faster than a new interpreter.
"""

from __future__ import annotations

import json
import logging
import os
import select
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from scalable import settings
from scalable.protocol.forking import (
    CODE,
    COMMAND_LINE_BYTES,
    DATAGRAM_BYTES,
    FORK,
    PID,
    READY,
    REAP,
    SERVER_PROGRAM,
    UNFIT,
    WorkerStart,
)

logger = logging.getLogger("scalable.providers")

#: Seconds that the server may take to load its modules. Shared file systems can be slow.
READY_TIMEOUT_S = 60.0
ANSWER_TIMEOUT_S = 10.0
END_TIMEOUT_S = 2.0
OUTPUT_SHOWN_BYTES = 2000


class ForkServerError(OSError):
    """The fork server has failed and can no longer fork workers."""


class ForkServerProcess:
    """Process that forks workers. It exits with this process, or on :meth:`close`."""

    def __init__(self) -> None:
        self.environment: Mapping[str, str] = settings.outside_step(os.environ)
        self.interpreter = sys.executable
        self._lock = threading.Lock()
        self._ready = False
        self._unfit: str | None = None
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the server
        self._channel, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        owner = os.pidfd_open(os.getpid())
        padding = "." * COMMAND_LINE_BYTES
        numbers = (other.fileno(), owner)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", SERVER_PROGRAM, *map(str, numbers), padding],
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=subprocess.STDOUT,
                env=self.environment,
                pass_fds=numbers,
                start_new_session=True,  # Ctrl-C is ours to handle
            )
        except OSError:
            self._channel.close()
            self._output.close()
            raise
        finally:
            other.close()
            os.close(owner)
        logger.debug("fork server %d starts", self._process.pid)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def unfit(self) -> str | None:
        """Reason why the server can no longer fork workers, or None."""
        return self._unfit

    def fork(self, start: WorkerStart, log: IO[bytes]) -> tuple[int, int]:
        """Fork a worker. Blocks until the server has loaded its modules.
        Return the worker's process id, and the write end of its lifeline, a pipe that the caller
        closes. Raise ForkServerError if the server cannot fork.
        """
        theirs, ours = os.pipe()
        try:
            with self._lock:
                self._wait_until_ready()
                pid = self._ask({FORK: True}, PID, (theirs, log.fileno()))
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        line = memoryview(start.to_line())
        with suppress(BrokenPipeError):  # the worker has exited, which is noticed later
            while line:
                line = line[os.write(ours, line) :]
        return pid, ours

    def reap(self, pid: int) -> int | None:
        """Return the exit code of a worker, or None if the server is gone."""
        with self._lock, suppress(ForkServerError):
            code: int | None = self._ask({REAP: pid}, CODE)
            return code
        return None

    def is_alive(self) -> bool:
        """Return whether the server runs. While it does, unreaped workers keep their pids."""
        return self._process.poll() is None

    def close(self) -> None:
        """Stop the server if it runs, and wait for its exit. The workers keep running."""
        if not self._ready:
            self._process.kill()  # a thread that waits for the server holds the lock
        with self._lock:
            self._unfit = self._unfit or "the fork server was closed"
            self._channel.close()
            self._output.close()
        try:
            self._process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:  # it is still loading its modules
            self._process.kill()
            self._process.wait()
        logger.debug("fork server %d has exited", self._process.pid)

    def _wait_until_ready(self) -> None:
        if self._ready or self._unfit is not None:
            return
        answer = self._receive(READY_TIMEOUT_S)
        if READY not in answer:
            self._fail(answer.get(UNFIT, "no answer"))
        self._ready = True
        logger.debug("fork server %d is ready", self._process.pid)

    def _ask(self, request: Mapping[str, Any], key: str, descriptors: tuple[int, ...] = ()) -> Any:
        if self._unfit is not None and not (self._ready and key == CODE):
            raise ForkServerError(self._unfit)
        try:
            socket.send_fds(self._channel, [json.dumps(request).encode()], list(descriptors))
        except OSError as error:
            self._fail(f"it has exited: {error}", error)
        answer = self._receive(ANSWER_TIMEOUT_S)
        if key not in answer:
            self._fail(answer.get(UNFIT, "no answer"))
        return answer[key]

    def _receive(self, timeout: float) -> dict[str, Any]:
        try:
            poll = select.poll()
            poll.register(self._channel, select.POLLIN)
            if not poll.poll(1000 * timeout):
                self._process.kill()  # a late answer would pass for the next one
                self._fail(f"it did not answer within {timeout:g} s")
            data = self._channel.recv(DATAGRAM_BYTES)
        except OSError as error:
            self._fail(f"it has exited: {error}", error)
        if not data:
            self._fail(f"it has ended; its last output: {self._last_output() or 'none'}")
        answer: dict[str, Any] = json.loads(data)
        return answer

    def _fail(self, reason: str, cause: BaseException | None = None) -> Any:
        self._unfit = self._unfit or reason
        raise ForkServerError(reason) from cause

    def _last_output(self) -> str:
        with suppress(OSError, ValueError):
            self._output.seek(0)
            return self._output.read()[-OUTPUT_SHOWN_BYTES:].decode(errors="replace").strip()
        return ""


def supported() -> bool:
    """Return whether this system supports a fork server: Linux 5.3 or newer."""
    if not hasattr(os, "pidfd_open") or not Path("/proc/self/mem").exists():
        return False
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:
        return False
    return True


def start_of(
    server: ForkServerProcess,
    environment: Mapping[str, str],
    arguments: tuple[str, ...],
    config: Mapping[str, Any] | None,
) -> WorkerStart:
    """Return instructions that make a forked worker behave as if this process had started it.
    Raise OSError if the working directory of this process was removed.
    """
    changed = different(environment, server.environment)
    return WorkerStart(
        environment={name: environment[name] for name in changed & environment.keys()},
        unset=tuple(sorted(changed - environment.keys())),
        directory=str(Path.cwd()),
        umask=_umask(),
        arguments=arguments,
        config=config,
    )


def _umask() -> int:
    """Read the umask from /proc, because ``os.umask`` would change it for a moment."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("Umask:"):
            return int(line.split()[1], 8)
    raise OSError("this system does not report the umask of a process")


# Forking ------------------------------------------------------------------------------------------

#: Prefixes of variables that are read before or while the modules of a worker are loaded: by
#: the dynamic linker, C's library, Python, OpenSSL and Dask.
READ_AT_START = ("LD_", "DYLD_", "PYTHON", "LC_", "MALLOC_", "GLIBC_", "OPENSSL_", "DASK_")
#: Other such variables, by their full names.
#: HOME contains the user's own packages and Dask's configuration.
NAMES_READ_AT_START = frozenset({"LANG", "LANGUAGE", "TZ", "HOME", "PATH_LOCALE"})


@dataclass(frozen=True)
class StartRequest:
    """Properties of a worker that determine how it can be started."""

    environment: Mapping[str, str]
    preload: tuple[str, ...]
    container: bool
    #: Path of the worker's Python.
    interpreter: str
    #: Environment with which the fork server was started.
    server_environment: Mapping[str, str]
    server_interpreter: str


def obstacle(request: StartRequest) -> str | None:
    """Return why a worker needs a new interpreter, or None if it can be forked."""
    if request.container:
        return "it runs in a container"
    if request.interpreter != request.server_interpreter:
        return f"it runs under {request.interpreter}"
    if request.preload:
        return "it has a preload script"
    for name in sorted(different(request.environment, request.server_environment)):
        if name in NAMES_READ_AT_START or name.startswith(READ_AT_START):
            return f"its variable {name} is read when an interpreter starts"
    return None


def can_fork(request: StartRequest) -> bool:
    """Return whether a worker can be forked instead of started in a new interpreter."""
    return obstacle(request) is None


def different(one: Mapping[str, str], other: Mapping[str, str]) -> set[str]:
    """Return the names of variables that differ between two environments."""
    return {name for name in one.keys() | other.keys() if one.get(name) != other.get(name)}
