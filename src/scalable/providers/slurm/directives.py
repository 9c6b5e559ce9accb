"""The sbatch options that users may add to batch scripts, and those that scalable sets. No I/O."""

from __future__ import annotations

import re

from scalable.model import names

#: Rule for one directive.
DIRECTIVE = names.Rule(
    "an option of sbatch",
    "write it as on the command line, such as --mail-type=END",
    longest=1024,
    first="-",
    rest=r"\s\S",
)

_COMPONENT = "write {} in the component instead"
_TARGET = "write {} in the target instead"
_NONE = "leave it out"
#: Hints for the options that scalable sets, or with which it could not work.
_OURS = {
    "job-name": _NONE,
    "comment": _NONE,
    "array": _NONE,
    "output": _TARGET.format("logs"),
    "error": _TARGET.format("logs"),
    "open-mode": _NONE,
    "ntasks": _NONE,
    "cpus-per-task": _COMPONENT.format("cpus"),
    "mem": _COMPONENT.format("memory"),
    "mem-per-cpu": _COMPONENT.format("memory"),
    "mem-per-gpu": _COMPONENT.format("memory"),
    "requeue": _NONE,
    "no-requeue": _NONE,
    "time": _TARGET.format("walltime"),
    "account": _TARGET.format("account"),
    "partition": _TARGET.format("queue"),
    "qos": _TARGET.format("qos"),
    "constraint": _TARGET.format("constraint"),
    "reservation": _TARGET.format("reservation"),
    "clusters": _NONE,
    "parsable": _NONE,
    "test-only": _NONE,
    "wait": _NONE,
    "wrap": _NONE,
    "uid": _NONE,
    "gid": _NONE,
    "help": _NONE,
    "usage": _NONE,
    "version": _NONE,
}
_SHORT = {
    "A": "account",
    "a": "array",
    "C": "constraint",
    "c": "cpus-per-task",
    "e": "error",
    "h": "help",
    "J": "job-name",
    "M": "clusters",
    "n": "ntasks",
    "o": "output",
    "p": "partition",
    "q": "qos",
    "t": "time",
    "u": "usage",
    "V": "version",
    "W": "wait",
}
#: Short options without a value: another option may follow in the same word.
_FLAGS = frozenset("hHIkOQRsuvVW")
#: Shortest prefix of a long option that sbatch may accept as an abbreviation.
_SHORTEST = 2


def directive_fault(text: str) -> tuple[str, str] | None:
    """Return the reason why a directive is refused and a hint, or None if it is allowed.
    Options that scalable sets are refused: they would be ignored, or replace scalable's own.
    """
    fault = DIRECTIVE.fault(text)
    if fault is not None:
        return fault, DIRECTIVE.hint
    for word in re.findall(r"\S+", text):
        option = _ours(word.strip("\"'"))
        if option is not None:
            return f"{text!r} cannot be a directive: scalable sets --{option}", _OURS[option]
    return None


def _ours(word: str) -> str | None:
    """Return the option of ``_OURS`` that a word of a directive sets, if any."""
    if word.startswith("--"):
        given = word[2:].partition("=")[0]
        if given in _OURS:
            return given
        abbreviated = (name for name in _OURS if name.startswith(given))
        return next(abbreviated, None) if len(given) >= _SHORTEST else None
    if not word.startswith("-"):
        return None
    for letter in word[1:]:
        if letter in _SHORT:
            return _SHORT[letter]
        if letter not in _FLAGS:
            return None
    return None
