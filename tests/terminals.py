"""A terminal in memory: a program runs in it, and its screen can be read."""

import codecs
import fcntl
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time

_SEQUENCE = re.compile(r"\x1b\[([?0-9;]*)([A-Za-z])|\x1b\][^\x07]*\x07")


class Terminal:
    """A program in a terminal of its own.

    Attributes
    ----------
    text
        Everything that the program wrote.
    hidden
        Whether the cursor is hidden.
    """

    def __init__(self, *command, rows=24, columns=80, env=None):
        self.rows, self.columns = rows, columns
        self.text, self.hidden = "", False
        self._lines, self._row, self._column = [""], 0, 0
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._held = ""
        self.code = None
        self.pid, self._master = pty.fork()
        if self.pid == 0:
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))
            environment = {**os.environ, "TERM": "xterm-256color", **(env or {})}
            os.execve(sys.executable, [sys.executable, *map(str, command)], environment)

    @property
    def screen(self):
        """Everything that would have been seen, scrolled lines too, without trailing space."""
        return "\n".join(line.rstrip() for line in self._lines).rstrip("\n")

    @property
    def column(self):
        """Column of the cursor."""
        return self._column

    def keys(self, data):
        """Press keys."""
        os.write(self._master, data)

    def kill(self, number=signal.SIGKILL):
        """Send a signal to the program."""
        os.kill(self.pid, number)

    def until(self, words, seconds=90):
        """Read until the screen contains words, or a function of the screen holds."""
        holds = words if callable(words) else lambda screen: words in screen
        deadline = time.monotonic() + seconds
        while not holds(self.screen):
            assert time.monotonic() < deadline, f"{words!r} does not hold of:\n{self.screen}"
            assert self._read(0.1), f"{words!r} does not hold of:\n{self.screen}"
        return self.screen

    def end(self, seconds=90):
        """Read to the end, and return the exit code."""
        deadline = time.monotonic() + seconds
        while self._read(0.1):
            assert time.monotonic() < deadline, f"it does not end:\n{self.screen}"
        self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        os.close(self._master)
        return self.code

    def _read(self, seconds):
        if not select.select([self._master], [], [], seconds)[0]:
            return True
        try:
            data = os.read(self._master, 1 << 16)
        except OSError:
            return False
        self._take(self._decode(data))
        return bool(data)

    def _take(self, text):
        self.text += text
        text, self._held = self._held + text, ""
        at = 0
        while at < len(text):
            if text[at] == "\x1b":
                found = _SEQUENCE.match(text, at)
                if found is None:
                    if len(text) - at < 12:
                        self._held = text[at:]
                        return
                    raise AssertionError(f"unknown sequence {text[at : at + 12]!r}")
                self._sequence(found[1], found[2])
                at = found.end()
                continue
            self._character(text[at])
            at += 1

    def _character(self, char):
        if char == "\r":
            self._column = 0
        elif char == "\n":
            self._row += 1
            if self._row == len(self._lines):
                self._lines.append("")
        elif char == "\b":
            self._column = max(0, self._column - 1)
        elif char >= " ":
            if self._column >= self.columns:
                self._character("\n")
                self._column = 0
            line = self._lines[self._row].ljust(self._column)
            self._lines[self._row] = line[: self._column] + char + line[self._column + 1 :]
            self._column += 1

    def _sequence(self, numbers, final):
        if final == "A":
            lowest = max(0, len(self._lines) - self.rows)
            self._row = max(lowest, self._row - int(numbers or 1))
        elif final == "K":
            line = self._lines[self._row]
            self._lines[self._row] = "" if numbers == "2" else line[: self._column]
        elif numbers == "?25":
            self.hidden = final == "l"
