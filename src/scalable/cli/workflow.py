"""A workflow's script in its own process: start, signals and exit."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from scalable import settings

#: Seconds that an interrupted script has to exit before it is killed.
STOP_GRACE_S = 20.0
#: Seconds between two updates of the progress.
TICK_S = 0.5

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)
_INTERRUPTED = 130
_PR_SET_PDEATHSIG = 1
# Linux's sender of a signal for a key pressed on the terminal (si_code of siginfo).
_SI_KERNEL = 0x80


def script_environment(
    environ: Mapping[str, str],
    *,
    manifest: Path,
    target: str | None,
    listing: Path,
    shown: Path | None = None,
    cluster: str | None = None,
) -> dict[str, str]:
    """Return the script's environment, in which ``target`` None keeps the target of ``environ``."""
    made = {settings.MANIFEST: str(manifest.absolute()), settings.RUN_LIST: str(listing)}
    if target is not None:
        made |= {settings.RUN_TARGET: target, settings.TARGET: target}
    if cluster is not None:
        made[settings.CLUSTER] = cluster
    if shown is not None:
        made[settings.RUN_OVERVIEWS] = str(shown)
    return {**environ, **made}


def run_script(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    stdout: int | None = None,
    stderr: int | None = None,
    started: Callable[[], None] = lambda: None,
    watch: Callable[[], None] = lambda: None,
) -> int:
    """Run a script until it exits, pass signals on for a clean exit, and return its exit code.
    The code is 128 + N after signal N, and 130 if this function killed the script. SIGTERM becomes
    a SIGINT, and SIGKILL after :data:`STOP_GRACE_S`. Threads may be started only in ``started``.
    """
    # A process group of its own keeps keys from the script of a background job. Without a terminal,
    # a signal to this whole group would otherwise reach the script twice.
    apart = signal.getsignal(signal.SIGINT) is signal.SIG_IGN or not _gets_keys()
    with _blocked(_SIGNALS) as mask, _Elsewhere() as elsewhere:
        child = subprocess.Popen(
            command,
            env=dict(environment),
            stdout=stdout,
            stderr=stderr,
            process_group=0 if apart else None,
            preexec_fn=_preparation(mask),  # noqa: PLW1509 - there are no threads yet
        )
        script = _Script(child, elsewhere, apart=apart)
        try:
            started()
            while child.poll() is None:
                script.attend()
                watch()
        except BaseException:
            script.interrupt()
            script.end_by(time.monotonic() + STOP_GRACE_S)
            while child.poll() is None:
                script.attend()
            raise
    watch()
    return script.exit_code


class _Script:
    """A running script and the state of stopping it."""

    def __init__(
        self, child: subprocess.Popen[bytes], elsewhere: _Elsewhere, *, apart: bool
    ) -> None:
        self._child, self._elsewhere, self._apart = child, elsewhere, apart
        self._interrupted = False
        self._killed = False
        self._deadline: float | None = None

    @property
    def exit_code(self) -> int:
        code = self._child.returncode
        if self._killed:
            return _INTERRUPTED
        return code if code >= 0 else 128 - code

    def attend(self) -> None:
        """Wait up to one tick for a signal, and act on it."""
        number, from_terminal = self._elsewhere.take() or _next_signal(TICK_S)
        if number == signal.SIGINT and (self._apart or not from_terminal):
            self.interrupt()
        elif number in (signal.SIGTERM, signal.SIGHUP):
            self.interrupt()
            self.end_by(time.monotonic() + STOP_GRACE_S)
        if self._deadline is not None and time.monotonic() > self._deadline:
            self._killed = True
            self._child.kill()

    def interrupt(self) -> None:
        """Send SIGINT once, because a second one would interrupt the script's clean-up."""
        if not self._interrupted:
            self._interrupted = True
            self._child.send_signal(signal.SIGINT)

    def end_by(self, deadline: float) -> None:
        """Kill the script at a time of the monotonic clock, which only the first call sets."""
        self._deadline = self._deadline or deadline


class _Elsewhere:
    """Signals that another thread of this process received, where they are not blocked.
    Their sender is unknown: a SIGINT counts as a key if this process can get keys.
    """

    def __init__(self) -> None:
        self._caught: list[int] = []
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            self._before[number] = signal.signal(number, self._catch)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _catch(self, number: int, _: object) -> None:
        self._caught.append(number)

    def take(self) -> tuple[int, bool] | None:
        """Return the next signal, and True if the terminal seems to have sent it, or None."""
        return (self._caught.pop(0), _gets_keys()) if self._caught else None


def _gets_keys() -> bool:
    """Return True if keys of a terminal reach this process."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)


@contextmanager
def _blocked(numbers: Sequence[signal.Signals]) -> Iterator[set[int]]:
    """Block signals for :func:`_next_signal`, and drop those that are left on exit."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield {int(number) for number in mask}
    finally:
        while pending := signal.sigpending() & set(numbers):
            signal.sigwait(pending)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _next_signal(timeout_s: float) -> tuple[int | None, bool]:
    """Return a signal (None: timeout), and True if the terminal sent it to the script too."""
    if sys.platform == "linux":
        info = signal.sigtimedwait(_SIGNALS, timeout_s)
        return (None, False) if info is None else (info.si_signo, info.si_code == _SI_KERNEL)
    time.sleep(timeout_s)
    pending = signal.sigpending() & set(_SIGNALS)
    return (signal.sigwait(pending), _gets_keys()) if pending else (None, False)


def _preparation(mask: set[int]) -> Callable[[], None]:
    """Return a function that prepares the script's process.
    On Linux the script gets a SIGINT when this process dies.
    """
    parent = os.getpid()
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None

    def prepare() -> None:
        # Shells start background programs with SIGINT ignored, and Python keeps it ignored.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if libc is not None:
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGINT)
        if os.getppid() != parent:
            os._exit(_INTERRUPTED)

    return prepare
