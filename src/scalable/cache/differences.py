"""Differences between two tasks' cache keys, as sentences. The functions are pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

#: Largest number of differences that one sentence names.
NAMED: Final = 3
#: Groups of parts in the order of reports: what users change most comes first.
_ORDER: Final = (
    "function",
    "code",
    "module",
    "constant",
    "argument",
    "depends_on",
    "version",
    "order of named arguments",
    "setting",
    "package",
    "image",
    "environment",
    "python",
    "key",
)
#: Groups whose parts are readable strings.
_TOLD: Final = frozenset({"package", "image", "python", "key"})
_VERSIONED: Final = {"image": "the image", "python": "Python", "key": "the version of keys"}
_OF_ARGUMENT: Final = " of an argument"


@dataclass(frozen=True)
class Difference:
    """Part in which two tasks' cache keys differ."""

    #: Name of the part, such as ``argument:scenario``.
    part: str
    #: Kind of the part: the name before the colon.
    group: str
    #: Digest or string of the part, or None if the key has no such part.
    now: str | None
    before: str | None
    #: The difference in words, without a full stop.
    sentence: str


def differences(
    function: str, now: Mapping[str, str], before: Mapping[str, str]
) -> tuple[Difference, ...]:
    """Return the parts in which a key differs from an earlier one, in report order."""
    found = [
        Difference(
            part,
            group_of(part),
            now.get(part),
            before.get(part),
            _sentence(function, part, now.get(part), before.get(part)),
        )
        for part in {**now, **before}
        if now.get(part) != before.get(part)
    ]
    if any(one.group == "code" for one in found):
        # A function's own part changes with its code: one sentence is enough.
        found = [one for one in found if one.group != "function"]
    return tuple(sorted(found, key=_place))


def why_missed(function: str, now: Mapping[str, str], nearest: Mapping[str, str] | None) -> str:
    """Return the reason for a cache miss as one sentence, without a full stop.
    ``nearest`` has the parts of an earlier result's key, or is None if the function has no results.
    """
    if nearest is None:
        return f"no result of {function} is stored"
    found = differences(function, now, nearest)
    if not found:
        return "the result of an equal task is no longer stored, or cannot be read"
    return summary(found)


def summary(found: Sequence[Difference]) -> str:
    """Return one sentence with the first few differences and the number of others."""
    told = [one.sentence for one in found[:NAMED]]
    others = len(found) - len(told)
    if others:
        told.append(f"{others} more part{'s' * (others > 1)} of the key differ{'s' * (others < 2)}")
    return "; ".join(told)


def group_of(part: str) -> str:
    """Return the kind of a part: ``code``, ``argument``, ``package`` and so on."""
    return part.partition(":")[0]


def parts_by_group(parts: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the names or values of a key's parts by kind, in report order."""
    groups: dict[str, list[str]] = {}
    for part in sorted(parts, key=lambda part: (_rank(group_of(part)), part)):
        group, _, name = part.partition(":")
        told = parts[part] if group in _TOLD else name
        groups.setdefault(group, []).append(told or parts[part])
    return groups


def _sentence(function: str, part: str, now: str | None, before: str | None) -> str:
    group, _, name = part.partition(":")
    if group == "function":
        return f"{function} is bound to other values, or is another object"
    if group == "code":
        return _of_code(function, name, now, before)
    if group == "package":
        return _of_package(name, now, before)
    if group in _VERSIONED:
        return _versions(_VERSIONED[group], now, before)
    if group == "argument" and now is not None and before is not None:
        return f"argument {name} changed"
    nouns = {
        "import": (f"the import of {name.removesuffix(_OF_ARGUMENT)}", "used"),
        "module": (f"the module {name.removesuffix(_OF_ARGUMENT)}", "used"),
        "constant": (f"the constant {name.removesuffix(_OF_ARGUMENT)}", "used"),
        "argument": (f"argument {name}", "given"),
        "depends_on": (f"depends_on[{name}]", "given"),
        "version": (f"version= of {function}", "given"),
        "setting": (f"the setting {name}", "other than the default"),
        "order of named arguments": ("the order of named arguments", "visible"),
        # Values of environment variables are not shown: they may be secrets.
        "environment": (f"the environment variable {name}", "set"),
    }
    noun, participle = nouns.get(group, (f"the part {part}", "in the key"))
    return f"{noun} {_verb(now, before, participle)}"


def _of_code(function: str, name: str, now: str | None, before: str | None) -> str:
    own, of_argument = name.removesuffix(_OF_ARGUMENT), name.endswith(_OF_ARGUMENT)
    noun = f"the function {own}" if own == function else f"the code of {own}"
    noun += ", which is an argument," if of_argument else ""
    return f"{noun} {_verb(now, before, 'used')}"


def _of_package(name: str, now: str | None, before: str | None) -> str:
    if now is None or before is None:
        return f"the package {name} {_verb(now, before, 'used')}"
    texts = [text.removeprefix(f"{name} ") for text in (now, before)]
    # A module outside installed packages is identified by the digest of its files.
    if any(text.startswith("files ") for text in texts):
        return f"the module {name} changed"
    return _versions(name, *texts)


def _versions(noun: str, now: str | None, before: str | None) -> str:
    if now is None:
        return f"{noun} is not given now, was {before}"
    return f"{noun} is {now}, was {before if before is not None else 'not given'}"


def _verb(now: str | None, before: str | None, participle: str) -> str:
    if now is None:
        return f"is no longer {participle}"
    return "changed" if before is not None else f"is {participle} now, was not before"


def _rank(group: str) -> int:
    return _ORDER.index(group) if group in _ORDER else len(_ORDER)


def _place(one: Difference) -> tuple[int, str]:
    return _rank(one.group), one.part
