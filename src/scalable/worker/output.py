"""What calls print, sent along to who asked for it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

#: No more than so many characters of one bundle are sent on.
MOST_CHARACTERS = 1_000_000

_here = threading.local()


class _Branch:
    """Standard output, which also tells who listens in the thread that prints."""

    def __init__(self, trunk: Any) -> None:
        self._trunk = trunk

    def write(self, text: str) -> Any:
        listener = getattr(_here, "listener", None)
        if listener is not None:
            listener(text)
        return self._trunk.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._trunk, name)


@contextmanager
def heard(listener: Callable[[str], None]) -> Iterator[None]:
    """Tell a listener what this thread prints."""
    if not isinstance(sys.stdout, _Branch):
        sys.stdout = _Branch(sys.stdout)
    _here.listener = listener
    try:
        yield
    finally:
        _here.listener = None


class Lines:
    """Gathers what is printed, and hands it on by lines.

    Parameters
    ----------
    send
        Takes whole lines, and at the end what is left.
    """

    def __init__(self, send: Callable[[str], None]) -> None:
        self._send = send
        self._open: list[str] = []
        self._left = MOST_CHARACTERS

    def write(self, text: str) -> None:
        """More was printed."""
        if self._left <= 0:
            return
        if len(text) > self._left:
            text = text[: self._left] + "\n[more was printed than is shown]\n"
        self._left -= len(text)
        whole, newline, rest = text.rpartition("\n")
        if newline:
            self._send("".join(self._open) + whole + newline)
            self._open = [rest] if rest else []
        elif rest:
            self._open.append(rest)

    def end(self) -> None:
        """Hand on what is left."""
        if self._open:
            self._send("".join(self._open))
            self._open = []
