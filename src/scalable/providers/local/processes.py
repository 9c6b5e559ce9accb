"""Processes of this user that run this package's programs: finding, watching, stopping.
Programs of a detached cluster are found by the private directory in their command line. A process
id alone is not enough, since it may be reused.
"""

from __future__ import annotations

import os
import re
import select
import shutil
import signal
import subprocess
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import psutil

from scalable import settings
from scalable.errors import ProviderError
from scalable.liveness import end_process, identify
from scalable.protocol.private_directory import default_parent, make_private
from scalable.providers.local.fork_server import ForkServerProcess

TERMINATE_S = 3.0
KILL_S = 5.0
POLL_S = 0.02


@dataclass(frozen=True)
class RunningProgram:
    """A process that runs one of this package's programs."""

    #: Process with its start time, which tells it apart if the process id is reused.
    process: psutil.Process
    #: Module that the process runs, such as ``scalable.worker.program``.
    module: str
    #: Arguments of the module. The first is a path.
    arguments: tuple[str, ...]


def programs(directory: Path) -> Iterator[RunningProgram]:
    """Yield this user's programs with a first argument inside a directory, except this process."""
    for path in Path("/proc").glob("[0-9]*"):
        if int(path.name) == os.getpid():
            continue
        with suppress(OSError, psutil.NoSuchProcess):  # the process has ended
            if path.stat().st_uid != os.geteuid() or _parse(path, directory) is None:
                continue
            process = psutil.Process(int(path.name))
            # Read again, because the process id may have been reused in between.
            found = _parse(path, directory)
            if found is not None:
                yield RunningProgram(process, *found)


def _parse(path: Path, directory: Path) -> tuple[str, tuple[str, ...]] | None:
    line = (path / "cmdline").read_bytes()
    if os.fsencode(directory) not in line:
        return None
    words = [os.fsdecode(word) for word in line.rstrip(b"\0").split(b"\0")]
    for flag, module, first in zip(words, words[1:], words[2:], strict=False):
        ours = flag == "-m" and module.startswith("scalable.")
        if ours and (first == str(directory) or first.startswith(f"{directory}/")):
            return module, tuple(words[words.index(module) + 1 :])
    return None


class Child(Protocol):
    """A process started by this process, directly or through its fork server."""

    pid: int
    #: Exit code after :meth:`reap`, negative for a signal. None before, or if unknown.
    returncode: int | None

    def keeps_number(self) -> bool:
        """Return whether the process id stays reserved for the child, even after its exit."""

    def reap(self) -> None:
        """Fetch the exit code of the exited process, and close its lifeline (a pipe)."""


class ExecutedChild:
    """A child process that runs a new interpreter."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self.pid = process.pid
        self.returncode: int | None = None

    def keeps_number(self) -> bool:
        return self.returncode is None

    def reap(self) -> None:
        self.returncode = self._process.wait(KILL_S)
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):
                self._process.stdin.close()


class ForkedChild:
    """A child process of the fork server. It closes ``lifeline``, a file descriptor."""

    def __init__(self, server: ForkServerProcess, pid: int, lifeline: int | None) -> None:
        self._server = server
        self._lifeline = lifeline
        self.pid = pid
        self.returncode: int | None = None

    def keeps_number(self) -> bool:
        """Return True until :meth:`reap` is called, as long as the fork server runs."""
        return self.returncode is None and self._server.is_alive()

    def reap(self) -> None:
        self.returncode = self._server.reap(self.pid)
        if self._lifeline is not None:
            os.close(self._lifeline)
            self._lifeline = None


class WorkerProcess:
    """The process of one worker, with its children."""

    def __init__(self, process: psutil.Process, child: Child | None = None) -> None:
        self.pid = process.pid
        self._process = process
        self._child = child
        self._group = process.pid
        self._leader: psutil.Process | None = process
        self._exit = _exit_descriptor(process, child)
        if self._exit is not None:  # closed when no thread refers to the object any more
            weakref.finalize(self, os.close, self._exit)
        if child is None:
            with suppress(ProcessLookupError):
                self._group = os.getpgid(process.pid)
        if self._group != process.pid:
            try:
                self._leader = psutil.Process(self._group)
            except psutil.NoSuchProcess:
                self._leader = None

    @property
    def returncode(self) -> int | None:
        """Exit code of a reaped child. None before that, or if unknown."""
        return None if self._child is None else self._child.returncode

    def has_exited(self) -> bool:
        """Return whether the process has exited, without reaping it."""
        if self._exit is None:
            return not _is_there(self._process)
        return _is_readable(self._exit, 0.0)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Block until the process exits. Return False after a timeout."""
        if self._exit is not None:
            return _is_readable(self._exit, timeout_s)
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not self.has_exited():
            if deadline is not None and time.monotonic() > deadline:
                return False
            time.sleep(POLL_S)
        return True

    def is_stopped(self) -> bool:
        """Return whether a signal such as SIGSTOP has suspended the process."""
        try:
            return self._process.status() == psutil.STATUS_STOPPED
        except psutil.NoSuchProcess:
            return False

    def terminate(self) -> None:
        if not self.has_exited():
            with suppress(psutil.NoSuchProcess):
                self._process.terminate()

    def kill(self) -> None:
        """Send SIGKILL to the process, and to its group if the group is certainly its own."""
        if self._group_is_its_own():
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._group, signal.SIGKILL)

    def end(self) -> None:
        """Kill and reap the process and its group. Raises ProviderError if it survives 5 s."""
        # Kill its children before it is reaped, because afterwards the number of its group may be
        # reused.
        self.kill()
        if not self.wait(KILL_S):
            raise ProviderError(
                f"process {self.pid} was killed but has not stopped after {KILL_S:g} s"
            )
        if self._child is not None:
            self._child.reap()

    def _group_is_its_own(self) -> bool:
        if self._group == os.getpgrp():
            return False
        if self._child is not None and self._child.keeps_number():
            return True  # the group keeps its number while a member exists, as a zombie too
        if self._process.is_running():
            return True
        if self._leader is None:
            return False
        return self._leader.is_running() or not psutil.pid_exists(self._group)


def _exit_descriptor(process: psutil.Process, child: Child | None) -> int | None:
    """Return a descriptor that becomes readable when the given process exits, or None."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except (OSError, AttributeError):
        return None
    if child is None and not process.is_running():  # the process id may have been reused
        os.close(descriptor)
        return None
    return descriptor


def _is_readable(descriptor: int, timeout_s: float | None) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(None if timeout_s is None else 1000 * timeout_s))


def _is_there(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def wait_for_exits(processes: list[WorkerProcess], timeout_s: float) -> None:
    """Wait until all processes have exited, or the timeout has passed."""
    deadline = time.monotonic() + timeout_s
    for process in processes:
        process.wait(max(0.0, deadline - time.monotonic()))


# Scratch ------------------------------------------------------------------------------------------


def file_name(name: str) -> str:
    """Return a worker's name or a tag with only characters that are safe in file names."""
    return re.sub(r"[^\w.-]", "_", name)


def make_scratch(cluster_id: str, name: str) -> Path:
    """Create the scratch directory of a worker. Only its owner can enter it."""
    # Workers share no parent directory, because another user could create that one first.
    return make_private(f"scalable-{cluster_id}-{file_name(name)}")


def find_scratch(cluster_id: str, name: str | None = None) -> tuple[Path, ...]:
    """Return this user's scratch directories of one worker, or of all workers, of a cluster."""
    # mkdtemp appends eight characters. Another worker's name may start with this one.
    rest = "*" if name is None else f"{file_name(name)}-????????"
    found = []
    for path in default_parent().glob(f"scalable-{cluster_id}-{rest}"):
        with suppress(FileNotFoundError):
            status = path.lstat()
            if status.st_uid == os.geteuid() and path.is_dir() and not path.is_symlink():
                found.append(path)
    return tuple(found)


# Discovery ----------------------------------------------------------------------------------------


#: Modules of the worker and manager programs.
WORKER, MANAGER = "scalable.worker.program", "scalable.clusters.programs.manager"
#: Largest number of searches for processes. One search is not enough: a manager may start another
#: worker while the manager is being ended.
ROUNDS = 5


def discover() -> list[dict[str, Any]]:
    """Return one row for each cluster in the state directory with a process on this machine."""
    parent = _parent()
    rows: dict[str, list[str]] = {}
    for program in programs(parent):
        cluster_id = Path(program.arguments[0]).relative_to(parent).parts[0]
        rows.setdefault(cluster_id, []).append(_describe(program))
    return [
        {"id": cluster_id, "provider": "local", "what": ", ".join(found)}
        for cluster_id, found in rows.items()
    ]


def delete(cluster_id: str) -> list[str]:
    """Stop a cluster's processes except this one, and remove their scratch directories.
    Return descriptions, if any. Raise ProviderError if a process does not stop.
    """
    ended: list[str] = []
    directory = _parent() / cluster_id
    for _ in range(ROUNDS):
        found = list(programs(directory))
        if not found:
            break
        ended += [_describe(program) for program in found]
        # Managers first: they replace workers that end.
        _end_programs([program for program in found if program.module == MANAGER])
        _end_workers([program for program in found if program.module == WORKER])
        _end_programs([p for p in found if p.module not in (MANAGER, WORKER)])
    else:
        left = ", ".join(_describe(program) for program in programs(directory))
        if left:
            raise ProviderError(
                f"processes of cluster {cluster_id} still run after {ROUNDS} attempts to stop "
                f"them: {left}"
            )
    for scratch in find_scratch(cluster_id):
        shutil.rmtree(scratch, ignore_errors=True)
    return list(dict.fromkeys(ended))


def _parent() -> Path:
    return settings.state_dir() / "clusters"


def _describe(program: RunningProgram) -> str:
    kind = program.module.rpartition(".")[2].removesuffix("_process")
    name = f" {program.arguments[1]}" if len(program.arguments) > 1 else ""
    return f"{kind}{name} (process {program.process.pid})"


def _end_programs(found: Sequence[RunningProgram]) -> None:
    for program in found:
        if program.process.is_running():
            end_process(identify(program.process.pid), TERMINATE_S, KILL_S)


def _end_workers(found: Sequence[RunningProgram]) -> None:
    workers = [WorkerProcess(program.process) for program in found]
    for worker in workers:
        worker.terminate()
    wait_for_exits(workers, TERMINATE_S)
    for worker in workers:
        worker.end()
