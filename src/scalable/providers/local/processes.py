"""The processes of this user that run programs of ours, and the end of exactly those.

A program of a detached cluster names the cluster's private directory in its command line. Neither a
number that was given away again nor another user's process can thus be mistaken for one.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from scalable.errors import ProviderError

TERMINATE_S = 3.0
KILL_S = 5.0
POLL_S = 0.02


@dataclass(frozen=True)
class Program:
    """A process that runs a program of ours.

    Attributes
    ----------
    process
        It; with its start, so that another of the same number is not taken for it.
    module
        What it runs, such as ``scalable.worker.program``.
    arguments
        What the module was given; the first is a path.
    """

    process: psutil.Process
    module: str
    arguments: tuple[str, ...]


def programs(directory: Path) -> Iterator[Program]:
    """Programs of this user, other than this process, whose first argument is there or below.

    The client of a container's runtime counts as the program that runs inside.
    """
    for path in Path("/proc").glob("[0-9]*"):
        if int(path.name) == os.getpid():
            continue
        with suppress(OSError, psutil.NoSuchProcess):  # it ended in this moment
            if path.stat().st_uid != os.geteuid() or _parse(path, directory) is None:
                continue
            process = psutil.Process(int(path.name))
            # Read anew: what is known of the process now is of the one that says this.
            found = _parse(path, directory)
            if found is not None:
                yield Program(process, *found)


def _parse(path: Path, directory: Path) -> tuple[str, tuple[str, ...]] | None:
    line = (path / "cmdline").read_bytes()
    if os.fsencode(directory) not in line:
        return None
    words = [os.fsdecode(word) for word in line.removesuffix(b"\0").split(b"\0")]
    for flag, module, first in zip(words, words[1:], words[2:], strict=False):
        ours = flag == "-m" and module.startswith("scalable.")
        if ours and (first == str(directory) or first.startswith(f"{directory}/")):
            return module, tuple(words[words.index(module) + 1 :])
    return None


class WorkerProcess:
    """The process of one worker, and its children.

    Parameters
    ----------
    process
        It leads a group of its own.
    child
        The same, where it is a child of this process.

    Attributes
    ----------
    pid
        Its number.
    """

    def __init__(
        self, process: psutil.Process, child: subprocess.Popen[bytes] | None = None
    ) -> None:
        self.pid = process.pid
        self._process = process
        self._child = child
        self._group = process.pid
        self._leader: psutil.Process | None = process
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
        """Exit code of a child that was reaped; None where it cannot be known."""
        return None if self._child is None else self._child.returncode

    def has_exited(self) -> bool:
        """Whether it has ended; a child is not reaped."""
        if self._child is None:
            return not _is_there(self._process)
        if self._child.returncode is not None:
            return True
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def is_stopped(self) -> bool:
        """Whether a signal stopped it, so that it does nothing."""
        try:
            return self._process.status() == psutil.STATUS_STOPPED
        except psutil.NoSuchProcess:
            return False

    def terminate(self) -> None:
        """Ask it to end."""
        if not self.has_exited():
            with suppress(psutil.NoSuchProcess):
                self._process.terminate()

    def end(self) -> None:
        """End it and its group, and reap it.

        Raises
        ------
        ProviderError
            When it does not end within 5 s.
        """
        # Its children first: once it is reaped, the number of its group may belong to others.
        if self._group_is_its_own():
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._group, signal.SIGKILL)
        deadline = time.monotonic() + KILL_S
        while not self.has_exited():
            if time.monotonic() > deadline:
                raise ProviderError(f"process {self.pid} does not end when killed")
            time.sleep(POLL_S)
        if self._child is not None:
            self._child.wait(KILL_S)
            if self._child.stdin is not None:
                with suppress(BrokenPipeError):
                    self._child.stdin.close()

    def _group_is_its_own(self) -> bool:
        if self._group == os.getpgrp():
            return False
        if self._child is not None or self._process.is_running():
            return True  # the number is theirs while one of them is there, as a zombie too
        if self._leader is None:
            return False
        return self._leader.is_running() or not psutil.pid_exists(self._group)


def _is_there(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def wait_for_exits(processes: list[WorkerProcess], timeout_s: float) -> None:
    """Wait until all of them have ended, or the time is over."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline and not all(p.has_exited() for p in processes):
        time.sleep(POLL_S)
