"""Types of the values in a manifest, and the base class of providers' option models.
Numbers and booleans are strict: ``"4"`` is not a number. An unquoted ``00123`` can be a string.
"""

from __future__ import annotations

import builtins
import difflib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    WithJsonSchema,
)
from pydantic_core import PydanticCustomError

from scalable.harmless import is_control
from scalable.model import names
from scalable.model.failures import OUT_OF_MEMORY
from scalable.model.names import Rule
from scalable.storage import url_fault
from scalable.units import (
    FACTOR,
    parse_bytes,
    parse_duration,
    parse_factor,
    parse_port_range,
    parse_walltime,
)

#: Limit of seconds and bytes, low enough that their sums and products stay finite.
MOST = 1e18


@dataclass(frozen=True)
class Written:
    """Annotation of a type whose unquoted scalars keep their spelling in the file."""

    #: Value types that become strings; with ``NoneType`` an empty value becomes "".
    kinds: tuple[type, ...] = (int, float)


def _one_line(text: str) -> str:
    if not text:
        raise PydanticCustomError("empty", "must not be empty; leave the key out instead")
    if any(character in text for character in "\n\r\0"):
        raise PydanticCustomError("lines", "must be a string on one line")
    if any(is_control(character) for character in text):
        raise PydanticCustomError("lines", "must not contain control characters")
    return text


def allowed(rule: Rule) -> Callable[[str], str]:
    """Return a validator that raises an error with the rule's hint for refused strings."""

    def check(text: str) -> str:
        fault = rule.fault(text)
        if fault is not None:
            # The message quotes user input, which must not be used as a template.
            raise PydanticCustomError("name", "{fault}", {"fault": fault, "hint": rule.hint})
        return text

    return check


def _image(text: str) -> str:
    allowed(names.IMAGE)(text.removeprefix("docker://"))
    return text


def _storage(key: str) -> Callable[[str], str]:
    """Return a validator for storage URLs whose errors name the manifest's key."""

    def check(text: str) -> str:
        fault = url_fault(text)
        if fault is not None:
            context = {"fault": f"{key} {fault.problem}", "hint": fault.hint}
            raise PydanticCustomError("secret" if fault.secret else "name", "{fault}", context)
        return text

    return check


def _without_nul(text: str) -> str:
    if "\0" in text:
        raise PydanticCustomError("nul", "must not contain a NUL character")
    return text


def _measured(parse: Callable[[str], float]) -> Callable[[str], str]:
    """Return a validator for strings that ``parse`` converts to a positive number."""

    def check(text: str) -> str:
        try:
            amount = parse(text)
        except OverflowError:
            amount = math.inf
        if not 0 < amount < MOST:
            raise ValueError(f"{text!r} must be more than 0 and less than {MOST:g}")
        return text

    return check


def _parsed(parse: Callable[[str], Any]) -> Callable[[str], str]:
    """Return a validator for strings that ``parse`` accepts."""

    def check(text: str) -> str:
        parse(text)
        return text

    return check


def _error_name(text: str) -> str:
    """Return the name of an exception class, replacing aliases of built-in classes."""
    if text == OUT_OF_MEMORY:
        return text
    if "." in text:
        if all(part.isidentifier() for part in text.split(".")):
            return text
        fault, close = f"retries.on: {text!r} is not the name of an exception class", []
    else:
        found = getattr(builtins, text, None)
        if isinstance(found, type) and issubclass(found, Exception):
            return found.__name__
        fault = f"retries.on: {text!r} is neither a builtin exception nor {OUT_OF_MEMORY}"
        close = difflib.get_close_matches(text, _ERROR_WORDS, 1, 0.8)
    hint = f"did you mean {close[0]!r}?" if close else "write other classes as module.Name"
    raise PydanticCustomError("name", "{fault}", {"fault": fault, "hint": hint})


_ERROR_WORDS = sorted(
    {OUT_OF_MEMORY}.union(
        name
        for name, value in vars(builtins).items()
        if isinstance(value, type) and issubclass(value, Exception)
    )
)


def _positive_workers(value: Any) -> Any:
    if type(value) is not int or value < 1:
        raise PydanticCustomError("E_BAD_MAX_WORKERS", "max_workers must be a positive integer")
    return value


def any_case(word: str) -> str:
    """Return a case-insensitive pattern for a word, for dialects without flags."""
    return "".join(f"[{c.lower()}{c.upper()}]" if c.isalpha() else f"[{c}]" for c in word)


_NUMBER = r"([0-9]+([.][0-9]*)?|[.][0-9]+)"
_UNITS = "|".join(
    any_case(unit)
    for unit in (
        *("ms", "seconds", "second", "secs", "sec", "s"),
        *("minutes", "minute", "mins", "min", "m", "hours", "hour", "hrs", "hr", "h"),
        *("days", "day", "d", "weeks", "week", "w"),
    )
)
_SPAN = rf"({_NUMBER}\s*({_UNITS})[\s,]*)+"
_CLOCK = r"([0-9]+-)?[0-9]+(:[0-9]+)?(:[0-9]+)?"
_SOME = r"(?=.*[1-9])"


def _text_or(number: str, pattern: str, *examples: str, **bounds: int) -> WithJsonSchema:
    """Return the schema of a string that may be written as a number; by default a positive one."""
    shown = {"pattern": pattern, "examples": list(examples)}
    return WithJsonSchema(
        {"type": ["string", number], **shown, **(bounds or {"exclusiveMinimum": 0})}
    )


Text: TypeAlias = Annotated[
    str,
    Written(),
    AfterValidator(_one_line),
    WithJsonSchema({"type": ["string", "number"], "pattern": r"^[^\n\r]+$"}),
]
"""String on one line; an unquoted number is read as a string."""

Argument: TypeAlias = Annotated[Text, AfterValidator(allowed(names.ARGUMENT))]
"""String that becomes an argument of a command; it does not start with a dash."""

ProjectName: TypeAlias = Annotated[Text, AfterValidator(allowed(names.PROJECT))]
Label: TypeAlias = Annotated[Text, AfterValidator(allowed(names.LABEL))]
Image: TypeAlias = Annotated[Text, AfterValidator(_image)]
StorageUrl: TypeAlias = Annotated[Text, AfterValidator(_storage("default_storage"))]
ResultsUrl: TypeAlias = Annotated[Text, AfterValidator(_storage("local_cache"))]
"""URL of a storage without credentials, or path of a directory."""

Interface: TypeAlias = Annotated[Text, AfterValidator(allowed(names.INTERFACE))]

TextMap: TypeAlias = dict[Annotated[str, AfterValidator(_one_line)], Text]

Environment: TypeAlias = dict[
    Annotated[str, AfterValidator(allowed(names.VARIABLE))],
    Annotated[
        str,
        Written((int, float, bool, type(None))),
        AfterValidator(_without_nul),
        WithJsonSchema({"type": ["string", "number", "boolean"]}),
    ],
]
"""Environment variables; every unquoted value is read as a string."""

PositiveInt: TypeAlias = Annotated[int, Field(strict=True, gt=0)]
NonNegativeInt: TypeAlias = Annotated[int, Field(strict=True, ge=0)]
PositiveFloat: TypeAlias = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]
NonNegativeFloat: TypeAlias = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]
Port: TypeAlias = Annotated[int, Field(strict=True, ge=0, le=65535)]

MaxWorkers: TypeAlias = Annotated[int, Field(gt=0), BeforeValidator(_positive_workers)]

PortRange: TypeAlias = Annotated[
    str,
    Written((int,)),
    AfterValidator(_parsed(parse_port_range)),
    _text_or(
        *("integer", r"^\s*[0-9]{1,5}([:-][0-9]{1,5})?\s*$", "40000:41000"),
        minimum=1,
        maximum=65535,
    ),
]
"""First and last port; see :func:`parse_port_range`."""

Memory: TypeAlias = Annotated[
    str,
    Written(),
    AfterValidator(_measured(parse_bytes)),
    _text_or("number", rf"^{_SOME}\s*{_NUMBER}\s*[kmgtpeKMGTPE]?[iI]?[bB]?\s*$", "20G", "512MiB"),
]
"""Amount of memory; a bare number is bytes."""

MemoryFactor: TypeAlias = Annotated[
    str,
    Written(),
    AfterValidator(_parsed(parse_factor)),
    _text_or("number", f"^{FACTOR}$", "1.5x", exclusiveMinimum=1),
]
"""Multiple of an amount, more than 1."""

ErrorName: TypeAlias = Annotated[
    str,
    AfterValidator(_error_name),
    WithJsonSchema(
        {
            "anyOf": [
                {"enum": _ERROR_WORDS},
                {"type": "string", "pattern": r"^[^\W\d]\w*([.][^\W\d]\w*)+$"},
            ]
        }
    ),
]
"""Name of an exception class: a builtin one, ``OutOfMemory``, or one with its module."""

Duration: TypeAlias = Annotated[
    str,
    Written(),
    AfterValidator(_measured(parse_duration)),
    _text_or(
        "number",
        rf"^{_SOME}\s*({_NUMBER}|{_SPAN}|[0-9]+:[0-9][0-9]:[0-9][0-9]|[0-9]+-{_CLOCK})\s*$",
        *("90s", "10m", "1h30m"),
    ),
]
"""Duration; a bare number is seconds."""

Walltime: TypeAlias = Annotated[
    str,
    Written((int,)),
    AfterValidator(_measured(parse_walltime)),
    _text_or("integer", rf"^{_SOME}\s*({_CLOCK}|{_SPAN})\s*$", "04:00:00", "1-12:00:00", "4h"),
]
"""Duration of a job as Slurm writes it; a bare number is minutes."""

ContainerRuntime: TypeAlias = Literal["none", "auto", "docker", "podman", "apptainer"]
#: Rules that divide the desired workers of a cluster among its managers.
ManagerPolicy: TypeAlias = Literal["waterfall", "cheapest"]
#: ``host``: the target's container runtime, with the host's Python mounted.
ComponentRuntime: TypeAlias = Literal["none", "auto", "docker", "podman", "apptainer", "host"]


class Record(BaseModel):
    """A map with a fixed set of keys."""

    # Models are built when they are first used, because most manifests use few.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, defer_build=True)


class ProviderOptions(Record):
    """Base class of the options of one provider's targets.

    Each field is an option. Its type, default and description appear in error messages, in the
    JSON Schema and in the documentation. Subclasses do not repeat the options of every target
    (``provider``, ``overlay``, ``adaptive``, ``idle_timeout``, ``time_to_live``,
    ``manager_grace``, ``spill_after``, ``price_per_core_hour``, ``prices``, ``budget``).

    Attributes
    ----------
    advice
        Hints for keys that users may try but that are not options, by key.
    """

    advice: ClassVar[Mapping[str, str]] = {}

    def worker_size(self) -> dict[str, Any]:
        """Return ``cpus`` and ``memory`` for components that omit them. The default is empty."""
        return {}
