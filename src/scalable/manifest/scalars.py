"""Types of unquoted scalars by the core schema of YAML 1.2 (yaml.org/spec/1.2.2, 10.3.2).
YAML 1.1 is not used: there ``no`` is a boolean and ``12:00:00`` is 43200.
"""

from __future__ import annotations

import re

_WORDS: dict[str, bool | float | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
    **{sign + word: float("inf") for sign in ("", "+") for word in (".inf", ".Inf", ".INF")},
    **{"-" + word: float("-inf") for word in (".inf", ".Inf", ".INF")},
}
_INTEGER = re.compile(r"[-+]?[0-9]+")
_OTHER_BASE = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_NUMBER_STARTS = frozenset("+-.0123456789")
# Python refuses to read a number of thousands of digits; a longer one is a string.
_LONGEST_NUMBER = 100


def resolve_plain(text: str) -> str | int | float | bool | None:
    """Return the value of an unquoted scalar, by default the string itself."""
    if text in _WORDS:
        return _WORDS[text]
    if text[0] not in _NUMBER_STARTS or len(text) > _LONGEST_NUMBER:
        return text
    if _INTEGER.fullmatch(text):
        return int(text)
    if _OTHER_BASE.fullmatch(text):
        return int(text, 0)
    return float(text) if _FLOAT.fullmatch(text) else text
