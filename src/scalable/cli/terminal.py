"""Texts from outside the program, made harmless to a terminal."""

from __future__ import annotations

import logging
import re

#: Control characters other than line break and tab, and those that change the order of text.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_LAST_BYTE = 0xFF


def harmless(text: str) -> str:
    r"""Return a text with its control characters shown as ``\x1b`` or ``\u202e``.

    Names, logs, reasons and messages come from workers, places and other users: written to a
    terminal, their escape sequences would move the cursor, set its title or clipboard, or hide
    text. Line breaks and tabs stay.
    """
    return _CONTROLS.sub(_shown, text.replace("\r\n", "\n"))


def _shown(found: re.Match[str]) -> str:
    number = ord(found[0])
    return f"\\x{number:02x}" if number <= _LAST_BYTE else f"\\u{number:04x}"


class _HarmlessFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return harmless(super().format(record))


def make_warnings_harmless() -> None:
    """Make the log messages harmless that Python prints where logging is not set up."""
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(_HarmlessFormatter())
