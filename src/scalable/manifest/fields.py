"""Types for what a manifest may hold, and the base of providers' option models.

Numbers and booleans are strict: ``"4"`` is no number and ``1`` no boolean. Text is generous: an
unquoted ``00123`` where text is due is that text, as it was written. A third party's options are a
subclass of :class:`ProviderOptions` built from these types or from pydantic's own::

    class Options(ProviderOptions):
        queue: Text | None = Field(default=None, description="Queue that jobs go to.")
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    WithJsonSchema,
)
from pydantic_core import PydanticCustomError

from scalable.units import parse_bytes, parse_duration, parse_port_range, parse_walltime

__all__ = [
    "ComponentRuntime",
    "ContainerRuntime",
    "Duration",
    "Environment",
    "MaxWorkers",
    "Memory",
    "NonNegativeFloat",
    "NonNegativeInt",
    "Port",
    "PortRange",
    "PositiveFloat",
    "PositiveInt",
    "ProviderOptions",
    "Record",
    "Text",
    "TextMap",
    "Walltime",
    "Written",
    "parse_port_range",
]

#: Amounts of seconds and bytes are less: sums and products of them stay numbers.
MOST = 1e18


@dataclass(frozen=True)
class Written:
    """Marks a type that takes unquoted scalars as the text that was written.

    Attributes
    ----------
    kinds
        Types of values that become text. ``NoneType`` makes an empty value the empty text.
    """

    kinds: tuple[type, ...] = (int, float)


def _one_line(text: str) -> str:
    if not text:
        raise PydanticCustomError("empty", "must not be empty; leave the key out instead")
    if any(character in text for character in "\n\r\0"):
        raise PydanticCustomError("lines", "must be text on one line")
    return text


def _measured(parse: Callable[[str], float]) -> Callable[[str], str]:
    """Check that a text can be read and is more than nothing; the text itself is kept."""

    def check(text: str) -> str:
        try:
            amount = parse(text)
        except OverflowError:
            amount = math.inf
        if not 0 < amount < MOST:
            raise ValueError(f"{text!r} must be more than 0, and less than {MOST:g}")
        return text

    return check


def _checked_ports(text: str) -> str:
    parse_port_range(text)
    return text


def _positive_workers(value: Any) -> Any:
    if type(value) is not int or value < 1:
        raise PydanticCustomError("E_BAD_MAX_WORKERS", "max_workers must be a positive integer")
    return value


def _any_case(word: str) -> str:
    return "".join(f"[{letter}{letter.upper()}]" for letter in word)


_NUMBER = r"([0-9]+([.][0-9]*)?|[.][0-9]+)"
_UNITS = "|".join(
    _any_case(unit)
    for unit in (
        *("ms", "seconds", "second", "secs", "sec", "s"),
        *("minutes", "minute", "mins", "min", "m", "hours", "hour", "hrs", "hr", "h"),
        *("days", "day", "d", "weeks", "week", "w"),
    )
)
_SPAN = rf"({_NUMBER}\s*({_UNITS})[\s,]*)+"
_CLOCK = r"([0-9]+-)?[0-9]+(:[0-9]+)?(:[0-9]+)?"
_SOME = r"(?=.*[1-9])"


def _text_or(number: str, pattern: str, *examples: str) -> WithJsonSchema:
    return WithJsonSchema(
        {
            "type": ["string", number],
            "pattern": pattern,
            "exclusiveMinimum": 0,
            "examples": list(examples),
        }
    )


Text: TypeAlias = Annotated[
    str,
    Written(),
    AfterValidator(_one_line),
    WithJsonSchema({"type": ["string", "number"], "pattern": r"^[^\n\r]+$"}),
]
"""Text on one line; numbers are taken as they were written."""

TextMap: TypeAlias = dict[str, Text]
"""Text to text."""

Environment: TypeAlias = dict[
    str,
    Annotated[
        str,
        Written((int, float, bool, type(None))),
        WithJsonSchema({"type": ["string", "number", "boolean"]}),
    ],
]
"""Environment variables; every value is taken as it was written."""

PositiveInt: TypeAlias = Annotated[int, Field(strict=True, gt=0)]
NonNegativeInt: TypeAlias = Annotated[int, Field(strict=True, ge=0)]
PositiveFloat: TypeAlias = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]
NonNegativeFloat: TypeAlias = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]
Port: TypeAlias = Annotated[int, Field(strict=True, ge=0, le=65535)]

MaxWorkers: TypeAlias = Annotated[int, Field(gt=0), BeforeValidator(_positive_workers)]
"""Total of workers on a target."""

PortRange: TypeAlias = Annotated[
    str,
    Written((int,)),
    AfterValidator(_checked_ports),
    WithJsonSchema(
        {
            "type": ["string", "integer"],
            "pattern": r"^\s*[0-9]{1,5}([:-][0-9]{1,5})?\s*$",
            "minimum": 1,
            "maximum": 65535,
            "examples": ["40000:41000"],
        }
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
"""Length of time; a bare number is seconds."""

Walltime: TypeAlias = Annotated[
    str,
    Written((int,)),
    AfterValidator(_measured(parse_walltime)),
    _text_or("integer", rf"^{_SOME}\s*({_CLOCK}|{_SPAN})\s*$", "04:00:00", "1-12:00:00", "4h"),
]
"""Length of a job as Slurm writes it; a bare number is minutes."""

ContainerRuntime: TypeAlias = Literal["none", "auto", "docker", "podman", "apptainer"]
#: ``host``: the target's container runtime, with the host's Python mounted.
ComponentRuntime: TypeAlias = Literal["none", "auto", "docker", "podman", "apptainer", "host"]


class Record(BaseModel):
    """A map with a fixed set of keys."""

    # A model that the manifest does not use is never built.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, defer_build=True)


class ProviderOptions(Record):
    """Base of the options that a target of one provider may carry.

    Each field is an option: its type, its default and its description appear in the checks, in the
    JSON Schema and in the documentation. Options that every target has (``provider``, ``overlay``,
    ``adaptive``, ``idle_timeout``, ``time_to_live``, ``spill_after``, ``price_per_core_hour``)
    are not repeated here.
    """
