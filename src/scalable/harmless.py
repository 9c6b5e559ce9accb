"""Strings from outside the program, made harmless for each medium.

``harmless`` is for blocks of text in terminals and logs, ``one_line`` for lines, cells and HTML
(templates escape it too), and ``label`` for labels of metrics.
"""

from __future__ import annotations

import logging
import re
import unicodedata

#: Characters that control a terminal, end a line or change the text direction, and halves of
#: characters, which cannot be written.
_CONTROLS = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
#: The same in blocks of text, which have line breaks and tabs.
_IN_BLOCKS = re.compile(rf"(?![\n\t]){_CONTROLS.pattern}")
_LAST_BYTE = 0xFF
#: Longest line of a log; a longer one loses its middle.
LONGEST_LINE = 2_000
_ENDS = 800
#: Longest name in a sentence.
LONGEST_NAME = 200
#: Replaces a character that would move the cursor, colour the text or change its direction.
REPLACED = "\ufffd"
#: Maximum number of combining marks that are kept on one character.
LONGEST_MARKS = 3
#: Number of characters of a string that are read. The rest is cut off.
READ_CHARACTERS = 4_000
_SPACES = re.compile(r"\s+")
#: Characters of these categories are marks.
_MARKS = frozenset({"Mn", "Me"})
#: Maximum characters of a label. Of longer strings a prefix is kept.
LONGEST_LABEL = 100
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


def is_control(character: str) -> bool:
    """Return whether a character ends a line, controls a terminal or changes the text direction."""
    return _CONTROLS.match(character) is not None


def harmless(text: str) -> str:
    r"""Return a string with its control characters shown as ``\x1b`` or ``\u202e``.
    Escape sequences could hide text or set a terminal's clipboard. Line breaks and tabs stay.
    """
    return _IN_BLOCKS.sub(_escaped, text.replace("\r\n", "\n"))


def _escaped(found: re.Match[str]) -> str:
    number = ord(found[0])
    return f"\\x{number:02x}" if number <= _LAST_BYTE else f"\\u{number:04x}"


def one_line(text: object) -> str:
    """Return a string on one line, without control characters and direction marks.
    Right-to-left letters stay. Whitespace is collapsed. Only ``READ_CHARACTERS`` are read.
    Invisible characters are replaced too, because the widths of cells must be known.
    """
    read = _SPACES.sub(" ", str(text)[: 2 * READ_CHARACTERS]).strip(" ")[:READ_CHARACTERS]
    if read.isascii() and read.isprintable():
        return read
    kept, marks = [], 0
    for char in read:
        category = unicodedata.category(char)
        marks = marks + 1 if category in _MARKS else 0
        if marks <= LONGEST_MARKS:
            kept.append(REPLACED if category == "Cf" or is_control(char) else char)
    return "".join(kept)


def indented_line(line: str) -> str:
    """Return :func:`one_line` of a string with at most 40 spaces of indentation."""
    indent = len(line) - len(line.lstrip(" "))
    return " " * min(indent, 40) + one_line(line)


def label(text: object) -> str:
    """Return a string of at most ``LONGEST_LABEL`` characters for the label of a metric."""
    shown = _CONTROLS.sub(_escaped, str(text)[: LONGEST_LABEL + 1])
    return shown if len(shown) <= LONGEST_LABEL else f"{shown[: LONGEST_LABEL - 3]}..."


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
