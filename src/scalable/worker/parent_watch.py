"""Exit of a worker process and its children when the process that owns it exits."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass

PARENT_INTERVAL_S = 1.0


@dataclass(frozen=True)
class ParentWatch:
    """Connection of a worker process to the process that owns it."""

    #: File descriptor of a pipe. The owner holds the other end.
    pipe: int
    #: Id of the owner if it is the parent of this process. The pipe alone does not suffice: another
    #: process that the owner forked may hold the other end too.
    parent: int | None = None
    #: File descriptor of the owner (``pidfd_open(2)``) if it is not the parent.
    owner: int | None = None

    def hold(self, scratch: str) -> None:
        """Remove ``scratch`` and kill this process group when the owner exits. Never blocks."""
        threading.Thread(target=self._end_with_owner, args=(scratch,), daemon=True).start()

    def _end_with_owner(self, scratch: str) -> None:
        watch_from_outside(self.pipe, scratch)
        while not self._owner_has_ended():
            pass
        remove_scratch(scratch)
        os.killpg(0, signal.SIGKILL)

    def _owner_has_ended(self) -> bool:
        """Wait up to a second for the owner's exit, and return whether it has exited."""
        watched = [self.pipe] if self.owner is None else [self.pipe, self.owner]
        timeout = PARENT_INTERVAL_S if self.owner is None else None
        readable, _, _ = select.select(watched, [], [], timeout)
        if self.owner in readable or (self.pipe in readable and not os.read(self.pipe, 4096)):
            return True
        return self.parent is not None and os.getppid() != self.parent


def watch_from_outside(pipe: int, scratch: str) -> None:
    """Start a process that removes ``scratch`` and kills this process group when the pipe closes.
    The process works even if a task holds the GIL, and is not among a task's children.
    """
    # A shell gives background commands an empty standard input: hence another number.
    script = (
        "exec 3<&0 >/dev/null 2>&1; "
        '( while read -r _ <&3; do :; done; rm -rf -- "$1"; kill -s KILL -- "-$2" ) &'
    )
    with suppress(FileNotFoundError):  # an image without a shell
        subprocess.run(
            ["/bin/sh", "-c", script, "watch", scratch, str(os.getpgrp())],
            stdin=pipe,
            check=False,
            timeout=10,
        )


def read_line() -> bytes:
    """Read exactly one line from standard input. Exits if the input ends earlier."""
    line = b""
    while not line.endswith(b"\n"):
        part = os.read(0, 65536)
        if not part:
            sys.exit("this program is started by scalable, with its configuration on stdin")
        line += part
    return line


def take_standard_input() -> int:
    """Return a new descriptor of standard input. Tasks get an empty standard input."""
    pipe = os.dup(0)
    with open(os.devnull, "rb") as nothing:  # noqa: PTH123
        os.dup2(nothing.fileno(), 0)
    return pipe


def remove_scratch(scratch: str) -> None:
    """Remove the directory of a worker. An empty path is ignored."""
    if scratch:
        shutil.rmtree(scratch, ignore_errors=True)
