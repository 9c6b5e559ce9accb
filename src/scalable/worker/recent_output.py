"""Last lines that the process of a worker has printed."""

from __future__ import annotations

import os
import re
import stat
import sys
from collections import deque
from contextlib import suppress
from typing import Any

from scalable.protocol.described_failures import LAST_CHARACTERS, last_lines, read_output_with

_STDOUT, _STDERR = 1, 2
#: Entries of Dask's log about its normal work, such as the start of a worker, and about failed
#: tasks, which are reported elsewhere.
_OF_DASK = re.compile(
    r"^\S+ \S+ - distributed[\w.]* - (?:"
    r"INFO - .*\n?"
    r"|\w+ - Compute Failed\n(?:(?:Key|State|Task|Exception|Traceback):.*\n)*\n?)",
    re.MULTILINE,
)
#: Number of characters that are read to find the last lines which are not such entries.
_READ_CHARACTERS = 4 * LAST_CHARACTERS


class _Remembering:
    """Stream that keeps the strings which Python writes to it last."""

    def __init__(self, stream: Any, recent: deque[str]) -> None:
        self._stream, self._recent = stream, recent

    def write(self, text: str) -> Any:
        if text:
            self._recent.append(text[-LAST_CHARACTERS:])
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def remember_output() -> None:
    """Add what the process printed last to the failures of tasks in this process.

    Output that goes to a file is read from there, with the output of child processes and of
    libraries in other languages. Elsewhere only what Python prints is kept.
    """
    if _is_file(_STDERR):
        read_output_with(_end_of_file)
        return
    recent: deque[str] = deque(maxlen=200)
    sys.stdout, sys.stderr = _Remembering(sys.stdout, recent), _Remembering(sys.stderr, recent)
    read_output_with(lambda: _last_printed("".join(list(recent))))


def _last_printed(text: str) -> str | None:
    """Return the last lines of an output without those of Dask about its work and failed tasks."""
    return last_lines(_OF_DASK.sub("", text)) or None


def _is_file(descriptor: int) -> bool:
    try:
        return stat.S_ISREG(os.fstat(descriptor).st_mode)
    except OSError:
        return False


def _end_of_file() -> str | None:
    """Return the last lines of the file to which standard error goes."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    try:
        # The descriptor itself may be open for writing only.
        file = os.open(f"/proc/self/fd/{_STDERR}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        size = os.fstat(file).st_size
        data = os.pread(file, _READ_CHARACTERS, max(0, size - _READ_CHARACTERS))
    except OSError:
        return None
    finally:
        os.close(file)
    if size > _READ_CHARACTERS:
        data = data.partition(b"\n")[2] or data  # a line that was cut is not recognised as Dask's
    return _last_printed(data.decode(errors="replace"))
