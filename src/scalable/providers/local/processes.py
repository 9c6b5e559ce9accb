"""Finds the processes of this user that belong to a cluster, by what their command line says.

It names the cluster's private directory, so neither a process number that was given away again nor
another user's process can be mistaken for one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Found:
    """A process.

    Attributes
    ----------
    pid
        Its number.
    arguments
        Its command line.
    """

    pid: int
    arguments: tuple[str, ...]


def own_processes(mark: str) -> Iterator[Found]:
    """Processes of this user, other than this one, with the text in one of their arguments.

    Parameters
    ----------
    mark
        For example the path of a cluster's directory.
    """
    wanted = mark.encode()
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if entry.stat().st_uid != os.geteuid():
                continue
            line = Path(entry.path, "cmdline").read_bytes()
        except OSError:
            continue  # it ended in this moment
        if wanted in line:
            arguments = tuple(os.fsdecode(part) for part in line.rstrip(b"\0").split(b"\0"))
            yield Found(int(entry.name), arguments)
