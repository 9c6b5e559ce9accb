"""Output of tasks, which is sent to the client that requested it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

#: Largest number of characters of one bundle that are sent.
MOST_CHARACTERS = 1_000_000

_here = threading.local()


class _SharedOutput:
    """Standard output that also passes output to the listener of the thread that prints."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> Any:
        listener = getattr(_here, "listener", None)
        if listener is not None:
            listener(text)
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def heard(listener: Callable[[str], None]) -> Iterator[None]:
    """Pass the output of this thread to a listener while the context is open."""
    if not isinstance(sys.stdout, _SharedOutput):
        sys.stdout = _SharedOutput(sys.stdout)
    _here.listener = listener
    try:
        yield
    finally:
        _here.listener = None


class Lines:
    """Buffer that passes the output of tasks on in whole lines."""

    def __init__(self, send: Callable[[str], None]) -> None:
        self._send = send
        self._open: list[str] = []
        self._left = MOST_CHARACTERS

    def write(self, text: str) -> None:
        """Add output, and pass on the lines that are complete."""
        if self._left <= 0:
            return
        if len(text) > self._left:
            text = (
                text[: self._left] + f"\n[output beyond {MOST_CHARACTERS} characters is left out]\n"
            )
        self._left -= len(text)
        whole, newline, rest = text.rpartition("\n")
        if newline:
            self._send("".join(self._open) + whole + newline)
            self._open = [rest] if rest else []
        elif rest:
            self._open.append(rest)

    def end(self) -> None:
        """Pass on the remaining output."""
        if self._open:
            self._send("".join(self._open))
            self._open = []
