"""Whether the process that opened a run is still there."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

#: A run of another host whose directory was not written to for this long, in seconds, is given up.
SILENCE_S = 120.0
# The start of a process is derived from the clock, which may be corrected while the process runs.
_CLOCK_TOLERANCE_S = 5.0


def identify_process() -> dict[str, Any]:
    """What tells this process from every other one, on this host and across hosts.

    Returns
    -------
    dict
        ``pid``, ``process_started_at`` (epoch seconds), ``host`` and ``boot_id`` (None where the
        system has none).
    """
    return {
        "pid": os.getpid(),
        "process_started_at": psutil.Process().create_time(),
        "host": socket.gethostname(),
        "boot_id": _boot_id(),
    }


def process_gone(run: Mapping[str, Any], last_write: float, now: float) -> bool:
    """Whether the process that opened a run has ended.

    On the run's own host the process table says so. Of another host only silence can be seen.

    Parameters
    ----------
    run
        The contents of run.json.
    last_write
        When anything in the run's directory was last written, in epoch seconds.
    now
        Epoch seconds.
    """
    pid = run.get("pid")
    if run.get("host") != socket.gethostname() or type(pid) is not int:
        return now - last_write > SILENCE_S
    boot_id = _boot_id()
    if boot_id is not None and run.get("boot_id") not in {None, boot_id}:
        return True
    return not _runs(pid, run.get("process_started_at"))


def _runs(pid: int, started_at: object) -> bool:
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        if not isinstance(started_at, (int, float)):
            return True
        return abs(process.create_time() - started_at) <= _CLOCK_TOLERANCE_S
    except psutil.AccessDenied:
        return True
    except (psutil.NoSuchProcess, ValueError, OverflowError):
        return False


def _boot_id() -> str | None:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return None
