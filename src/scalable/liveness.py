"""Identity of processes, checks for liveness, and termination."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from scalable.errors import ClusterError

#: Seconds without a write after which a run on another host counts as finished.
SILENCE_S = 120.0
# The start time of a process is computed from the clock, which may be corrected later.
_CLOCK_TOLERANCE_S = 5.0
_POLL_S = 0.05


def identify_process() -> dict[str, Any]:
    """Return values that distinguish this process from every other process on any host.
    Start ticks count from the boot (proc(5)). Values missing on a system are None.
    """
    return {
        "pid": os.getpid(),
        "process_started_at": psutil.Process().create_time(),
        "start_ticks": _start_ticks(os.getpid()),
        "host": socket.gethostname(),
        "boot_id": _boot_id(),
        "pid_namespace": _pid_namespace(),
    }


def identify(pid: int) -> dict[str, Any]:
    """Return another local process's identity. For an exited one, it matches no process."""
    try:
        started_at = psutil.Process(pid).create_time()
    except psutil.Error:
        started_at = 0.0
    own = {"pid": pid, "process_started_at": started_at, "start_ticks": _start_ticks(pid)}
    return {**identify_process(), **own}


def is_alive(identity: Mapping[str, Any]) -> bool | None:
    """Return whether a process is alive, or None on another host or in another container.
    A zombie is not alive. Reboots, and new processes with the same id, are recognized.
    """
    pid = identity.get("pid")
    if identity.get("host") != socket.gethostname() or type(pid) is not int:
        return None
    if rebooted(identity):
        return False
    return None if _in_another_namespace(identity) else _runs(pid, identity)


def place_of(identity: Mapping[str, Any]) -> str:
    """Return the id and the location of a process, for messages."""
    words = f"process {identity.get('pid')} on {identity.get('host')}"
    here = identity.get("host") == socket.gethostname()
    return f"{words} (in another container)" if here and _in_another_namespace(identity) else words


def _in_another_namespace(identity: Mapping[str, Any]) -> bool:
    its, own = identity.get("pid_namespace"), _pid_namespace()
    return its is not None and own is not None and its != own


def rebooted(identity: Mapping[str, Any]) -> bool:
    """Return whether this host was rebooted after the process started."""
    here = identity.get("host") == socket.gethostname()
    boot_id = _boot_id()
    return here and boot_id is not None and identity.get("boot_id") not in (None, boot_id)


def number_taken(identity: Mapping[str, Any]) -> bool:
    """Return whether a different process on this host now has the process id of ``identity``."""
    pid = identity.get("pid")
    if identity.get("host") != socket.gethostname() or type(pid) is not int:
        return False
    if _in_another_namespace(identity):
        return False
    try:
        return not _started_then(psutil.Process(pid), identity)
    except (psutil.Error, ValueError, OverflowError):
        return False


def end_process(identity: Mapping[str, Any], term_s: float, kill_s: float) -> None:
    """Terminate a process with SIGTERM, and with SIGKILL if it is still alive after ``term_s``.
    Does nothing if it is not alive or runs on another host.
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
        # The process has exited, or the system or the Python build has no pidfd_open.
        if is_alive(identity):
            os.kill(pid, number)
        return
    try:
        # The descriptor refers to one process, even if another process gets its id later.
        if is_alive(identity):
            signal.pidfd_send_signal(descriptor, number)
    finally:
        os.close(descriptor)


def process_gone(run: Mapping[str, Any], last_write: float, now: float) -> bool:
    """Return whether a run's process has exited, or is on another host and silent for too long."""
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
    """Return whether a process has the start time in ``identity``, and so is the same one."""
    ticks = identity.get("start_ticks")
    if ticks is not None and (its := _start_ticks(process.pid)) is not None:
        return bool(its == ticks)
    started_at = identity.get("process_started_at")
    if not isinstance(started_at, (int, float)):
        return True
    return bool(abs(process.create_time() - started_at) <= _CLOCK_TOLERANCE_S)


def _start_ticks(pid: int) -> int | None:
    """Return a process's start in clock ticks since the boot (field 22 of /proc/PID/stat)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        return int(stat.rpartition(")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return None


def _pid_namespace() -> str | None:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return None


def _boot_id() -> str | None:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return None


def refuse_in_child(pid: int) -> None:
    """Raise ClusterError if this process is a fork of ``pid``, with unusable connections."""
    if os.getpid() != pid:
        raise ClusterError(
            f"this client belongs to process {pid}, and this process ({os.getpid()}) is a fork of "
            "it: a fork has neither the threads nor the connections of a client",
            hint="submit tasks and take results in the process that created the client, or create "
            "another client here (for a detached cluster, with scalable.connect())",
        )


def exit_in_child(pid: int, error: BaseException | None) -> None:
    """Exit if this process is a fork of ``pid`` that runs outside the function that forked it.
    Otherwise it would continue as a second worker that shares the first one's connections.
    """
    if os.getpid() == pid:
        return
    code = int(error is not None)
    if isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    elif error is not None:
        traceback.print_exception(error)
    sys.stdout.flush()
    os._exit(code)
