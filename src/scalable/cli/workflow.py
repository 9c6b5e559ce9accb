"""A workflow's script in its own process: start, signals and exit."""

from __future__ import annotations

import codecs
import ctypes
import fcntl
import logging
import os
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self, TextIO

from scalable.model.overview import Overview
from scalable.records.overview_file import OverviewFile
from scalable.session.progress import LiveDisplay, can_draw

#: Seconds that an interrupted script has to exit before it is killed.
STOP_GRACE_S = 20.0
#: Seconds between two updates of the progress.
TICK_S = 0.5

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)
#: Signals that stay ignored if they were, as SIGHUP after nohup.
_MAY_BE_IGNORED = (signal.SIGTERM, signal.SIGHUP)
_INTERRUPTED = 130
_PR_SET_PDEATHSIG = 1
# Linux's sender of a signal for a key pressed on the terminal (si_code of siginfo).
_SI_KERNEL = 0x80


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
    with _blocked(_received()) as mask, _Elsewhere() as elsewhere:
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
            script.stop()
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
            self.stop()
        if self._deadline is not None and time.monotonic() > self._deadline:
            self._killed = True
            self._child.kill()

    def interrupt(self) -> None:
        """Send SIGINT once, because a second one would interrupt the script's clean-up."""
        if not self._interrupted:
            self._interrupted = True
            self._child.send_signal(signal.SIGINT)

    def stop(self) -> None:
        """Interrupt the script, and kill it if it does not exit in time."""
        self.interrupt()
        self._deadline = self._deadline or time.monotonic() + STOP_GRACE_S


class _Elsewhere:
    """Signals received by another thread of this process, where they are not blocked.
    Their sender is unknown: SIGINT counts as Ctrl-C if this is a terminal's foreground process.
    """

    def __init__(self) -> None:
        self._caught: list[int] = []
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        for number in set(_received()) - {signal.SIGCHLD}:
            self._before[number] = signal.signal(number, self._catch)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _catch(self, number: int, _: object) -> None:
        self._caught.append(number)

    def take(self) -> tuple[int, bool] | None:
        """Return the next signal, and whether the terminal seems to have sent it, or None."""
        return (self._caught.pop(0), _gets_keys()) if self._caught else None


def _received() -> list[signal.Signals]:
    """Return the signals to act on: not those that were ignored when this process started."""
    ignored = {n for n in _MAY_BE_IGNORED if signal.getsignal(n) is signal.SIG_IGN}
    return [number for number in _SIGNALS if number not in ignored]


def _gets_keys() -> bool:
    """Return whether this process is in the foreground of a terminal."""
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
    """Block signals for :func:`_next_signal`, and drop pending ones on exit."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield {int(number) for number in mask}
    finally:
        while pending := signal.sigpending() & set(numbers):
            signal.sigwait(pending)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _next_signal(timeout_s: float) -> tuple[int | None, bool]:
    """Return a signal (None: timeout), and whether the terminal sent it to the script too."""
    if sys.platform == "linux":
        info = signal.sigtimedwait(_received(), timeout_s)
        return (None, False) if info is None else (info.si_signo, info.si_code == _SI_KERNEL)
    time.sleep(timeout_s)
    pending = signal.sigpending() & set(_received())
    return (signal.sigwait(pending), _gets_keys()) if pending else (None, False)


def _preparation(mask: set[int]) -> Callable[[], None]:
    """Return a pre-execution function that sends the script SIGINT when this process dies."""
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


# Script terminal ----------------------------------------------------------------------------------

logger = logging.getLogger("scalable.cli")

#: Limits for collecting output before it is drawn: seconds, and characters.
_COLLECT_S, _COLLECT = 0.05, 1 << 20
#: Seconds for which output is still read from programs that outlive the script.
_REST_S = 1.0
_POLL_S = 0.1

#: Sequences that leave the cursor where it is, or in its line: colours, titles, links, fonts.
_HARMLESS = re.compile(
    r"\x1b(?:\[[0-9;:]*m|\[[0-9]*K|\[\?25[hl]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[()][A-Z0-9])"
)
_COLOUR = re.compile(r"\x1b\[([0-9;:]*)m")
_CURSOR = re.compile(r"\x1b\[\?25[hl]")
#: Unfinished sequence at the end of a string.
_UNFINISHED = re.compile(r"\x1b(?:\[[0-9;:?]*|\][^\x07\x1b]{0,250}\x1b?|[()])?\Z")


class ScriptTerminal:
    """Pseudo-terminal for a script's output, which is copied to the real one above a display.
    The real one stays the controlling terminal. If the script moves the cursor, the display stops.
    """

    def __init__(self, display: LiveDisplay, stream: TextIO) -> None:
        self._display, self._stream = display, stream
        self._master, self.descriptor = os.openpty()
        attributes = termios.tcgetattr(self.descriptor)
        attributes[1] &= ~termios.OPOST  # the real terminal turns \n into \r\n
        attributes[3] &= ~termios.ECHO
        termios.tcsetattr(self.descriptor, termios.TCSANOW, attributes)
        self._size = b""
        self._follow_size()
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._held = _OpenLine()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Start copying. The script must have started."""
        os.close(self.descriptor)
        self.descriptor = -1
        self._thread = threading.Thread(target=self._copy, name="scalable-terminal", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        if self.descriptor >= 0:
            os.close(self.descriptor)
        os.close(self._master)

    # In the thread ------------------------------------------------------------------------------

    def _copy(self) -> None:
        ended_at, ticked_at = None, time.monotonic()
        while True:
            text, closed = self._collected()
            self._show(text)
            now = time.monotonic()
            if now - ticked_at >= TICK_S:
                ticked_at = now
                self._follow_size()
                if self._display.lives and not can_draw(self._stream):
                    self._step_aside("this process is no longer in the foreground")
            if self._over.is_set():
                ended_at = ended_at or now
            if closed or (ended_at is not None and (not text or now - ended_at > _REST_S)):
                break
        self._display.tail("")
        self._pass_on(self._held.take_all())

    def _collected(self) -> tuple[str, bool]:
        """Return the script's output, and whether the script has closed its terminal."""
        parts: list[bytes] = []
        until = float("inf")
        while time.monotonic() < until and sum(map(len, parts)) <= _COLLECT:
            if not select.select([self._master], [], [], 0.0 if parts else _POLL_S)[0]:
                break
            try:
                data = os.read(self._master, 1 << 16)
            except OSError:  # no process has it open any more
                data = b""
            if not data:
                return self._decode(b"".join(parts), True), True
            until = until if parts else time.monotonic() + _COLLECT_S
            parts.append(data)
        return self._decode(b"".join(parts)), False

    def _show(self, text: str) -> None:
        if not text:
            return
        if not self._display.lives:
            self._pass_on(self._held.take_all() + text)
            return
        lines, tail = self._held.add(text)
        if self._held.moves_cursor:
            self._step_aside("the script moves the cursor itself")
            return
        if lines:
            self._display.print(lines, tail)
        else:
            self._display.tail(tail)

    def _step_aside(self, why: str) -> None:
        logger.debug("the live display stops: %s", why)
        self._display.close()
        self._pass_on(self._held.take_all())

    def _pass_on(self, text: str) -> None:
        """Write to the real terminal. Errors of the terminal do not affect the script."""
        if not text:
            return
        if self._display.lives:
            self._display.print(text if text.endswith("\n") else f"{text}\n")
            return
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError) as error:
            logger.debug("output of the script is not shown: %s", error)

    def _follow_size(self) -> None:
        try:
            size = fcntl.ioctl(
                self._stream.fileno(), termios.TIOCGWINSZ, struct.pack("4H", *[0] * 4)
            )
            if size != self._size:
                fcntl.ioctl(self._master, termios.TIOCSWINSZ, size)
                self._size = size
        except (OSError, ValueError) as error:
            logger.debug("the size of the terminal is not known: %s", error)


class _OpenLine:
    """Unfinished last line of the output, which is not shown yet."""

    def __init__(self) -> None:
        self.moves_cursor = False
        self._text = ""
        self._colour = ""

    def add(self, text: str) -> tuple[str, str]:
        """Return the complete lines, and the current appearance of the unfinished line."""
        self._text += text
        sure = _UNFINISHED.sub("", self._text)
        if "\x1b" in _HARMLESS.sub("", sure):
            self.moves_cursor = True
            return "", ""
        end = self._text.rfind("\n") + 1
        lines, self._text = self._text[:end], self._text[end:]
        return self._coloured(_CURSOR.sub("", lines)), _seen(self._text)

    def take_all(self) -> str:
        text, self._text = self._colour + self._text if self._text else "", ""
        return text

    def _coloured(self, lines: str) -> str:
        """Return lines that start with the previous colour, and reset it at the end."""
        if not lines:
            return ""
        before = self._colour
        for found in _COLOUR.finditer(lines):
            reset = found[1] in ("", "0")
            self._colour = "" if reset else (self._colour + found[0])[-200:]
        return before + lines + ("\x1b[0m" if before or "\x1b" in lines else "")


def _seen(line: str) -> str:
    """Return an unfinished line as a terminal would show it, without colours."""
    plain = _UNFINISHED.sub("", line)
    plain = _HARMLESS.sub("", plain)
    seen = next((part for part in reversed(plain.split("\r")) if part), "")
    while "\b" in seen:
        seen = re.sub(r"[^\b]?\x08", "", seen, count=1)
    return seen


# Progress -----------------------------------------------------------------------------------------


class Followed:
    """Runs opened by a workflow, and its sessions' clusters, from two exchange files."""

    def __init__(self, listing: Path, shown: Path) -> None:
        self._listing = listing
        self._file = OverviewFile(shown)
        self._last: list[Overview] = []

    def runs(self) -> list[Path]:
        try:
            lines = self._listing.read_text(encoding="utf-8").split("\n")
        except FileNotFoundError:
            return []
        # The last part is empty, or an unfinished line.
        return [Path(line) for line in dict.fromkeys(lines[:-1]) if line]

    def overviews(self) -> list[Overview]:
        """Return the overviews of the running sessions, or of the last one if all have closed."""
        clusters = self._file.read()
        if clusters:
            live = [cluster.overview for cluster in clusters.values() if not cluster.ended]
            self._last = live or [list(clusters.values())[-1].overview]
        return self._last
