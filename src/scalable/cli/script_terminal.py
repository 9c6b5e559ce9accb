"""A terminal for a workflow's script, whose output is shown above a live display."""

from __future__ import annotations

import codecs
import fcntl
import logging
import os
import re
import select
import struct
import termios
import threading
import time
from typing import Self, TextIO

from scalable.session.displays import LiveDisplay, can_draw

logger = logging.getLogger("scalable.cli")

#: Limits for collecting output before it is drawn: seconds, and characters.
_COLLECT_S, _COLLECT = 0.05, 1 << 20
#: Seconds for which output is still read from programs that outlive the script.
_REST_S = 1.0
_POLL_S = 0.1
_TICK_S = 0.5

#: Sequences that leave the cursor where it is, or in its line: colours, titles, links, fonts.
_HARMLESS = re.compile(
    r"\x1b(?:\[[0-9;:]*m|\[[0-9]*K|\[\?25[hl]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[()][A-Z0-9])"
)
_COLOUR = re.compile(r"\x1b\[([0-9;:]*)m")
_CURSOR = re.compile(r"\x1b\[\?25[hl]")
#: Unfinished sequence at the end of a string.
_UNFINISHED = re.compile(r"\x1b(?:\[[0-9;:?]*|\][^\x07\x1b]{0,250}\x1b?|[()])?\Z")


class ScriptTerminal:
    """A pseudo-terminal for the output of a script, copied to the real one above a display.
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
        self._held = _Held()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Start to copy, which requires that the script has started."""
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
            if now - ticked_at >= _TICK_S:
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
        """Return the script's output, and True if the script has closed its terminal."""
        parts: list[bytes] = []
        until = None
        wait_s = _POLL_S
        while until is None or time.monotonic() < until:
            if not select.select([self._master], [], [], wait_s)[0]:
                break
            try:
                data = os.read(self._master, 1 << 16)
            except OSError:  # no process has it open any more
                data = b""
            if not data:
                return self._decode(b"".join(parts), True), True
            parts.append(data)
            wait_s = 0.0
            until = until or time.monotonic() + _COLLECT_S
            if sum(map(len, parts)) > _COLLECT:
                break
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
        logger.debug("the live display ends: %s", why)
        self._display.close()
        self._pass_on(self._held.take_all())

    def _pass_on(self, text: str) -> None:
        """Write to the real terminal, whose errors do not affect the script."""
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


class _Held:
    """Output that has not been shown: the last, unfinished line."""

    def __init__(self) -> None:
        self.moves_cursor = False
        self._text = ""
        self._colour = ""

    def add(self, text: str) -> tuple[str, str]:
        """Return the whole lines, and the present look of the unfinished line."""
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
        """Return lines that start with the colour of those before, and leave none behind."""
        if not lines:
            return ""
        before = self._colour
        for found in _COLOUR.finditer(lines):
            reset = found[1] in ("", "0")
            self._colour = "" if reset else (self._colour + found[0])[-200:]
        return before + lines + ("\x1b[0m" if before or "\x1b" in lines else "")


def _seen(line: str) -> str:
    """Return what a terminal would show of an unfinished line, without colours."""
    plain = _UNFINISHED.sub("", line)
    plain = _HARMLESS.sub("", plain)
    seen = next((part for part in reversed(plain.split("\r")) if part), "")
    while "\b" in seen:
        seen = re.sub(r"[^\b]?\x08", "", seen, count=1)
    return seen
