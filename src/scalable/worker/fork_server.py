"""Program of a fork server, with the arguments ``SOCKET OWNER PADDING``.

It imports a worker's modules once. Each worker is a fork, and so does not import ``distributed``
itself. PADDING reserves memory for workers' command lines in the process table.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import socket
import sys
import threading
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from scalable.protocol.code import interpreter_options
from scalable.protocol.forking import (
    CODE,
    DATAGRAM_BYTES,
    FORK,
    PID,
    READY,
    REAP,
    SERVER_MODULE,
    UNFIT,
    WorkerStart,
    worker_command,
)


# The ``forkserver`` context of multiprocessing is not used. It imports the user's ``__main__`` into
# each child, so that scripts without a guard would run again. It gives its children no log file, no
# process session, and no connection that stops them with their owner. The user's script may also
# need the context for itself.
# These rules make a forked worker behave like a newly started process:
# - The server has one thread whenever it forks. It loads no module that starts threads or that
# reads environment variables which a component may set. If that fails, it reports the reason, and
# workers are started in new interpreters.
# - It loads no module of the user: neither the working directory nor the script's directory is on
# its module search path (which is why it is not started with ``python -m``).
# - It never has a worker's configuration or environment: the worker reads both from a pipe.
# - It keeps each exit code until the launcher requests it. Until then, the system does not reuse
# the id of the worker and of its process group.
# - It is in its own session, out of reach of Ctrl-C. It exits with the process that owns it (OWNER
# is a descriptor of that process, ``pidfd_open(2)``). Its workers have the same descriptor, and do
# not exit with the server.
class ForkServer:
    """Server that forks workers for one launcher."""

    def __init__(self, channel: socket.socket, owner: int) -> None:
        self._channel = channel
        self._owner = owner

    def tell(self, answer: dict[str, Any]) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):  # serve() notices the lost launcher
            self._channel.send(json.dumps(answer).encode())

    def serve(self) -> bool:
        """Answer requests until the launcher is gone. Returns True only in a forked worker."""
        while True:
            readable, _, _ = select.select([self._channel.fileno(), self._owner], [], [])
            if self._owner in readable:
                return False
            flags = socket.MSG_CMSG_CLOEXEC
            text, descriptors, _, _ = socket.recv_fds(self._channel, DATAGRAM_BYTES, 2, flags)
            if not text:
                return False
            request = json.loads(text)
            if FORK in request:
                if self._fork(*descriptors):
                    return True
            else:
                self._reap(request[REAP])

    def _fork(self, pipe: int, log: int) -> bool:
        """Fork a worker, and return True in the worker's process."""
        try:
            reason = more_than_one_thread()
            pid = None if reason is not None else os.fork()
        except OSError as error:
            pid, reason = None, f"fork failed: {error}"
        if pid == 0:
            os.setsid()
            self._channel.close()
            for target, source in ((0, pipe), (1, log), (2, log)):
                os.dup2(source, target)
        else:
            self.tell({UNFIT: reason} if pid is None else {PID: pid})
        os.close(pipe)
        os.close(log)
        return pid == 0

    def _reap(self, pid: int) -> None:
        """Wait for a worker's exit, and send its exit code, or None for an unknown worker."""
        code = None
        with suppress(ChildProcessError):
            _, status = os.waitpid(pid, 0)
            code = os.waitstatus_to_exitcode(status)
        self.tell({CODE: code})


def more_than_one_thread() -> str | None:
    """Return a reason not to fork if this process has several threads, or None."""
    known, there = threading.active_count(), len(list(Path("/proc/self/task").iterdir()))
    if known == there == 1:
        return None
    return f"the fork server has {max(known, there)} threads"


def show_command_line(words: list[str]) -> bool:
    """Set this process's command line in the process table, and return whether that succeeded."""
    text = b"\0".join(os.fsencode(word) for word in words) + b"\0"
    try:
        # Fields 48 and 49 of proc(5), counted from behind the name, which may contain spaces.
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        start, end = int(fields[45]), int(fields[46])
        if not 0 < len(text) <= end - start:
            return False
        with Path("/proc/self/mem").open("r+b", buffering=0) as memory:
            memory.seek(start)
            memory.write(text.ljust(end - start, b"\0"))
    except (OSError, IndexError, ValueError):
        return False
    return Path("/proc/self/cmdline").read_bytes().rstrip(b"\0") == text.rstrip(b"\0")


def take_on(start: WorkerStart) -> None:
    """Give this fork the arguments, environment and directory of a new process."""
    import multiprocessing
    import tempfile

    show_command_line(worker_command(sys.executable, start.arguments))
    for name in start.unset:
        os.environ.pop(name, None)
    os.environ.update(start.environment)
    os.umask(start.umask)
    os.chdir(start.directory)
    if not sys.flags.safe_path and not interpreter_options(start.directory):
        sys.path.insert(0, start.directory)
    program = sys.modules[worker_command("", ())[-1]].__file__ or ""
    sys.argv = [program, *start.arguments]
    sys.orig_argv[:] = worker_command(sys.executable, start.arguments)
    tempfile.tempdir = None
    multiprocessing.current_process().authkey = os.urandom(32)
    # Python's random numbers and OpenSSL's are seeded again by their own hooks.


def run_worker(owner: int) -> None:
    """Read this worker's settings from standard input, and run it until it stops."""
    from scalable.harmless import make_logs_harmless
    from scalable.worker.config import WorkerConfig
    from scalable.worker.parent_watch import ParentWatch, read_line, take_standard_input
    from scalable.worker.program import run_from_file, run_with_lifeline

    start = WorkerStart.from_line(read_line())
    take_on(start)
    make_logs_harmless()
    pipe = take_standard_input()
    gc.enable()
    if start.config is not None:
        run_with_lifeline(WorkerConfig(**start.config), ParentWatch(pipe, owner=owner))
    else:
        os.close(pipe)
        os.close(owner)
        path, name, *preload = start.arguments
        run_from_file(Path(path), name, preload)


def main() -> None:
    """Load a worker's modules, and fork workers until the launcher is gone."""
    channel, owner = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])
    for descriptor in (channel.fileno(), owner):
        os.set_inheritable(descriptor, False)
    renamed = show_command_line([sys.executable, "-m", SERVER_MODULE])
    # Without collections, and with nothing to collect in the modules, workers share their memory.
    gc.disable()

    reason = preload() or more_than_one_thread()
    if reason is None and not renamed:
        reason = "this system cannot change the command line of a process"
    gc.freeze()
    server = ForkServer(channel, owner)
    server.tell({READY: True} if reason is None else {UNFIT: reason})
    if server.serve():
        run_worker(owner)
    else:
        os._exit(0)  # at once: there is nothing to clear away


# Preloading ---------------------------------------------------------------------------------------

#: Modules that a worker loads while it starts, if the installed Dask has them.
MODULES = (
    "distributed.http.health",
    "distributed.http.statics",
    "distributed.http.worker.prometheus",
    "tornado.platform.asyncio",
)
#: Smallest size in bytes of messages whose memory comes from numpy, which uses large pages.
LARGE_BYTES = 4 * 2**20


class NumpyLater(ModuleType):
    """Stand-in for numpy while ``distributed`` is loaded, so that workers load numpy themselves."""

    def __init__(self) -> None:
        super().__init__("numpy")
        #: Name of another attribute that a module tried to read from numpy.
        self.missed: str | None = None

    def empty(self, shape: tuple[int], dtype: str) -> Any:
        """Return memory for a message, from numpy if it is loaded or the message is large."""
        if "numpy" in sys.modules or shape[0] >= LARGE_BYTES:
            with suppress(ImportError):
                return importlib.import_module("numpy").empty(shape, dtype=dtype)
        return SimpleNamespace(data=memoryview(bytearray(shape[0])))

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("__"):
            self.missed = name
        raise AttributeError(f"numpy is not loaded yet, and its stand-in has no {name!r}")


def preload() -> str | None:
    """Load a worker's modules. Return a reason if a fork would differ from a new process."""
    stand_in = NumpyLater() if "numpy" not in sys.modules and find_spec("numpy") else None
    if stand_in is not None:
        sys.modules["numpy"] = stand_in
    try:
        importlib.import_module("distributed")
    finally:
        if stand_in is not None:
            del sys.modules["numpy"]
    if stand_in is not None and stand_in.missed is not None:
        return f"a module that distributed loads needs numpy.{stand_in.missed}"
    importlib.import_module("scalable.worker.program")
    for name in MODULES:
        with suppress(ImportError):
            importlib.import_module(name)
    # Dask reads the versions of packages from their metadata, and keeps them.
    importlib.import_module("distributed.versions").get_versions()
    if "numpy" in sys.modules:
        return "numpy is loaded with distributed"
    return None
