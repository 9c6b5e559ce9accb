"""Which process is which, whether it is still there, and the end of exactly that one."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

#: A run of another host whose directory was not written to for this long, in seconds, is given up.
SILENCE_S = 120.0
# The start of a process is derived from the clock, which may be corrected while the process runs.
_CLOCK_TOLERANCE_S = 5.0
_POLL_S = 0.05


def identify_process() -> dict[str, Any]:
    """What tells this process from every other one, on this host and across hosts.

    Returns
    -------
    dict
        ``pid``, ``process_started_at`` (epoch seconds), ``start_ticks`` (since the boot, see
        proc(5)), ``host`` and ``boot_id``; None where the system does not tell.
    """
    return {
        "pid": os.getpid(),
        "process_started_at": psutil.Process().create_time(),
        "start_ticks": _start_ticks(os.getpid()),
        "host": socket.gethostname(),
        "boot_id": _boot_id(),
    }


def identify(pid: int) -> dict[str, Any]:
    """What tells another process of this host from every other one; as :func:`identify_process`.

    A process that is gone already gets a start that no process has.
    """
    try:
        started_at = psutil.Process(pid).create_time()
    except psutil.Error:
        started_at = 0.0
    own = {"pid": pid, "process_started_at": started_at, "start_ticks": _start_ticks(pid)}
    return {**identify_process(), **own}


def is_alive(identity: Mapping[str, Any]) -> bool | None:
    """Whether exactly this process is there; None where that cannot be told from here.

    A process of another host cannot be seen. A zombie, another process with the same number, and
    one from before a reboot are gone.
    """
    pid = identity.get("pid")
    if identity.get("host") != socket.gethostname() or type(pid) is not int:
        return None
    return not rebooted(identity) and _runs(pid, identity)


def rebooted(identity: Mapping[str, Any]) -> bool:
    """Whether this host was started anew since."""
    here = identity.get("host") == socket.gethostname()
    boot_id = _boot_id()
    return here and boot_id is not None and identity.get("boot_id") not in {None, boot_id}


def number_taken(identity: Mapping[str, Any]) -> bool:
    """Whether another process bears the number now."""
    pid = identity.get("pid")
    if identity.get("host") != socket.gethostname() or type(pid) is not int:
        return False
    try:
        return not _started_then(psutil.Process(pid), identity)
    except (psutil.Error, ValueError, OverflowError):
        return False


def end_process(identity: Mapping[str, Any], term_s: float, kill_s: float) -> None:
    """End exactly this process: SIGTERM, and SIGKILL where that does not help in time.

    Parameters
    ----------
    identity
        The process. One that is gone, or not on this host, is left alone.
    term_s, kill_s
        Seconds to wait after each signal.
    """
    for number, patience_s in ((signal.SIGTERM, term_s), (signal.SIGKILL, kill_s)):
        if not is_alive(identity):
            return
        with suppress(ProcessLookupError):
            _signal(identity, number)
        deadline = time.monotonic() + patience_s
        while is_alive(identity) and time.monotonic() < deadline:
            time.sleep(_POLL_S)


def _signal(identity: Mapping[str, Any], number: int) -> None:
    pid = int(identity["pid"])
    try:
        descriptor = os.pidfd_open(pid)
    except (AttributeError, OSError):
        # It is gone; or this is Linux before 5.3, or a Python built for that.
        if is_alive(identity):
            os.kill(pid, number)
        return
    try:
        # The descriptor is of one process, whoever is given its number meanwhile.
        if is_alive(identity):
            signal.pidfd_send_signal(descriptor, number)
    finally:
        os.close(descriptor)


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
    alive = is_alive(run)
    return now - last_write > SILENCE_S if alive is None else not alive


def _runs(pid: int, identity: Mapping[str, Any]) -> bool:
    try:
        process = psutil.Process(pid)
        return process.status() != psutil.STATUS_ZOMBIE and _started_then(process, identity)
    except psutil.AccessDenied:
        return True
    except (psutil.NoSuchProcess, ValueError, OverflowError):
        return False


def _started_then(process: psutil.Process, identity: Mapping[str, Any]) -> bool:
    """Whether the process that bears a number now is the one that was identified."""
    ticks = identity.get("start_ticks")
    if ticks is not None and (its := _start_ticks(process.pid)) is not None:
        return bool(its == ticks)
    started_at = identity.get("process_started_at")
    if not isinstance(started_at, (int, float)):
        return True
    return bool(abs(process.create_time() - started_at) <= _CLOCK_TOLERANCE_S)


def _start_ticks(pid: int) -> int | None:
    """When a process started, in clock ticks since the boot: field 22 of proc(5)'s stat."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        return int(stat.rpartition(")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return None


def _boot_id() -> str | None:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return None
