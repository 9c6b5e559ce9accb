"""Strings from outside the program, made harmless for terminals and logs."""

from __future__ import annotations

import logging
import re

#: Control characters other than line break and tab, and those that change the text direction.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_LAST_BYTE = 0xFF
#: Longest line of a log; a longer one loses its middle.
LONGEST_LINE = 2_000
_ENDS = 800
#: Longest name in a sentence.
LONGEST_NAME = 200
#: Log format of our programs.
LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
#: Loggers that have handlers of their own: the root, and those that Dask sets up.
_WITH_HANDLERS = (
    "", "distributed", "distributed.client", "distributed.scheduler", "bokeh", "tornado",
    "tornado.application",
)  # fmt: skip


def sendable(text: str) -> str:
    """Return a string that can be encoded, with lone surrogates (as in file names) escaped."""
    return text.encode("utf-8", "backslashreplace").decode()


def is_sendable(key: object) -> bool:
    """Return whether the strings of a key can be encoded, as messages require."""
    if isinstance(key, tuple):
        return all(map(is_sendable, key))
    return not isinstance(key, str) or key.isascii() or sendable(key) == key


def harmless(text: str) -> str:
    r"""Return a string with its control characters shown as ``\x1b`` or ``\u202e``.
    Escape sequences could hide text or set a terminal's clipboard. Line breaks and tabs stay.
    """
    return _CONTROLS.sub(lambda found: escaped(found[0]), text.replace("\r\n", "\n"))


def escaped(character: str) -> str:
    r"""Return a character as ``\x1b`` or ``\u202e``."""
    number = ord(character)
    return f"\\x{number:02x}" if number <= _LAST_BYTE else f"\\u{number:04x}"


def short_name(name: str) -> str:
    """Return a name or key for a sentence, with the middle of a long one cut out."""
    if len(name) <= LONGEST_NAME:
        return name
    return f"{name[: LONGEST_NAME // 2]}...{name[-LONGEST_NAME // 2 + 3 :]}"


def bounded_lines(text: str) -> str:
    """Cut the middle out of lines with more than ``LONGEST_LINE`` characters."""
    if len(text) <= LONGEST_LINE:
        return text
    return "\n".join(map(_bounded, text.split("\n")))


def _bounded(line: str) -> str:
    if len(line) <= LONGEST_LINE:
        return line
    return f"{line[:_ENDS]} ... ({len(line)} characters) ... {line[-_ENDS:]}"


class HarmlessFormatter(logging.Formatter):
    """Formatter that makes the lines of another formatter harmless, by default bare messages."""

    def __init__(self, formatter: logging.Formatter | None = None) -> None:
        super().__init__()
        self._formatter = formatter or logging.Formatter()

    def format(self, record: logging.LogRecord) -> str:
        return bounded_lines(harmless(self._formatter.format(record)))


def make_warnings_harmless() -> None:
    """Make log messages harmless in processes without a logging configuration."""
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(HarmlessFormatter())


def make_logs_harmless() -> None:
    """Make the log output of this process harmless. Only for scalable's own programs."""
    make_warnings_harmless()
    for name in _WITH_HANDLERS:
        for handler in logging.getLogger(name).handlers:
            if not isinstance(handler.formatter, HarmlessFormatter):
                handler.setFormatter(HarmlessFormatter(handler.formatter))


def log_to_stderr() -> None:
    """Write the log of a program, and Dask's warnings, to standard error."""
    logging.basicConfig(level=logging.INFO, format=LOG_FORMAT)
    logging.getLogger("distributed").setLevel(logging.WARNING)
    make_logs_harmless()
