r"""Values of labels, made of strings that users chose. Pure.

Characters that prometheus-client does not escape, such as controls, direction marks and lone
surrogates (without a UTF-8 form), are shown as ``\x1b`` or ``\u202e``.
"""

from __future__ import annotations

from scalable.spec.names import is_control

#: Maximum characters of a label. Of longer strings a prefix is kept.
LONGEST_VALUE = 100
_LAST_BYTE = 0xFF


def label(text: object) -> str:
    """Return a string as the value of a label."""
    given = str(text)
    if given.isascii() and given.isprintable() and len(given) <= LONGEST_VALUE:
        return given
    shown = "".join(_shown(c) if is_control(c) else c for c in given[: LONGEST_VALUE + 1])
    return shown if len(shown) <= LONGEST_VALUE else f"{shown[: LONGEST_VALUE - 3]}..."


def _shown(character: str) -> str:
    number = ord(character)
    return f"\\x{number:02x}" if number <= _LAST_BYTE else f"\\u{number:04x}"
