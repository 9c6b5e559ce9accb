"""Parsing and formatting of bytes, durations, walltimes and ranges of ports."""

from __future__ import annotations

import math
import re
from typing import overload

_BYTES = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([kmgtpe]?)(i?)(b?)\s*", re.IGNORECASE)
_EXPONENTS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5, "e": 6}
_DURATION_PART = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*([a-z]+)", re.IGNORECASE)
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_DURATION_NAMES = {
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), "s"),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), "m"),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), "h"),
    **dict.fromkeys(("d", "day", "days"), "d"),
    **dict.fromkeys(("w", "week", "weeks"), "w"),
    "ms": "ms",
}
_CLOCK = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")


def parse_bytes(text: str | int) -> int:
    """Return the bytes in an amount of memory, or raise ValueError.
    As in Dask and Kubernetes, ``20G`` and ``20GB`` are 20 * 10**9, ``20Gi`` is 20 * 2**30.
    """
    match = _BYTES.fullmatch(str(text))
    if match is None:
        raise ValueError(f"{text!r} is not an amount of memory: write, for example, 20G or 512MiB")
    number, prefix, binary, _ = match.groups()
    base = 1024 if binary else 1000
    return int(float(number) * base ** _EXPONENTS[prefix.lower()])


def format_bytes(count: float) -> str:
    """Format bytes in binary units, such as ``1.50 GiB``."""
    for prefix, exponent in (("Pi", 5), ("Ti", 4), ("Gi", 3), ("Mi", 2), ("ki", 1)):
        if count >= 0.9 * 1024**exponent:
            return f"{count / 1024**exponent:.2f} {prefix}B"
    return f"{count:.0f} B"


_WRITTEN = tuple(
    (f"{prefix}{binary}", (1024 if binary else 1000) ** exponent)
    for prefix, exponent in (("T", 4), ("G", 3), ("M", 2), ("K", 1))
    for binary in ("", "i")
)


def as_written(count: int) -> str:
    """Format bytes as briefly as possible, exactly if possible, such as ``600M`` or ``1.5Gi``."""
    exact = [
        f"{count / size:g}{unit}"
        for unit, size in _WRITTEN
        if count >= size and round(count / size, 2) * size == count
    ]
    return min(exact, key=len) if exact else format_bytes(count)


def like(example: int, count: float) -> str:
    """Format rounded bytes in decimal or binary units, whichever the example uses."""
    binary = "i" if "i" in as_written(example) else ""
    for unit, size in _WRITTEN:
        if unit.endswith("i") == bool(binary) and count >= size:
            return f"{count / size:.3g}{unit}"
    return f"{count:.0f}"


def parse_duration(text: str | float) -> float:
    """Return the seconds in ``90s``, ``1h30m``, ``HH:MM:SS`` or a number, or raise ValueError."""
    if isinstance(text, (int, float)) and not isinstance(text, bool):
        return float(text)
    stripped = str(text).strip()
    if re.fullmatch(r"\d+(?:\.\d*)?|\.\d+", stripped):
        return float(stripped)
    if re.fullmatch(r"\d+:\d\d:\d\d", stripped) or "-" in stripped[1:]:
        return parse_walltime(stripped)
    compact = re.sub(r"[\s,]+", "", stripped)
    seconds, position = 0.0, 0
    for match in _DURATION_PART.finditer(compact):
        unit = _DURATION_NAMES.get(match.group(2).lower())
        if match.start() != position or unit is None:
            break
        seconds += float(match.group(1)) * _SECONDS[unit]
        position = match.end()
    if not compact or position != len(compact):
        raise ValueError(f"{text!r} is not a duration: write, for example, 90s, 10m or 1h30m")
    return seconds


@overload
def seconds_of(argument: str, value: str | float) -> float: ...
@overload
def seconds_of(argument: str, value: None) -> None: ...
def seconds_of(argument: str, value: str | float | None) -> float | None:
    """Return the seconds in an argument, or raise a ValueError that names the argument.
    Numbers and None are returned as they are.
    """
    if value is None or (isinstance(value, (int, float)) and not isinstance(value, bool)):
        return value
    try:
        return parse_duration(value)
    except ValueError as error:
        raise ValueError(f"{argument}={error}") from None


def parse_walltime(text: str | int) -> float:
    """Return the seconds in a walltime written as for ``sbatch --time`` or like ``4h``.
    A bare number is minutes. Other strings raise ValueError.
    """
    stripped = str(text).strip()
    match = _CLOCK.fullmatch(stripped)
    if match is None:
        try:
            # parse_duration passes strings with a "-" to this function.
            if re.fullmatch(r"[\d.]+ *[a-z][^-]*", stripped, re.IGNORECASE):
                return parse_duration(stripped)
        except ValueError:
            pass
        raise ValueError(
            f"{text!r} is not a walltime: write, for example, 04:00:00, 1-12:00:00 or 4h"
        )
    days, first, second, third = (int(part) if part else None for part in match.groups())
    if days is not None:
        hours, minutes, seconds = first or 0, second or 0, third or 0
    elif third is not None:
        hours, minutes, seconds = first or 0, second or 0, third
    else:
        hours, minutes, seconds = 0, first or 0, second or 0
    return float((days or 0) * 86400 + hours * 3600 + minutes * 60 + seconds)


def format_duration(seconds: float) -> str:
    """Format seconds, such as ``1.2 ms``, ``12.4 s``, ``3 m 05 s``, ``2 h 07 m``."""
    if seconds < 0.00005:
        return "0 s"
    if seconds < 60:
        in_seconds = f"{seconds:.2f} s" if seconds < 1 else f"{seconds:.1f} s"
        return f"{seconds * 1000:.1f} ms" if seconds < 0.1 else in_seconds
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} m {whole % 60:02d} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} m"
    return f"{whole // 86400} d {whole % 86400 // 3600:02d} h"


def format_amount(amount: float, unit: str) -> str:
    """Format a cost without its unit, such as ``1250``, ``12.50`` or ``0.00031``.
    Money has two decimals and worker-seconds none. Small amounts have two significant digits.
    """
    decimals, least = (0, 10.0) if unit == "worker-seconds" else (2, 0.1)
    if 0 < amount < least:
        decimals = max(decimals, 1 - math.floor(math.log10(amount)))
    return f"{amount:.{decimals}f}"


def counted(count: int, what: str, plural: str | None = None) -> str:
    """Return a number and a noun, such as ``1 task`` or ``2 tasks``."""
    return f"{count} {what}" if count == 1 else f"{count} {plural or what + 's'}"


#: Pattern of a factor: a number above 1, with or without an x.
FACTOR = r"(?!0*([.xX]|$))(?!0*1([.]0*)?[xX]?$)([0-9]{1,9}([.][0-9]*)?)[xX]?"


def parse_factor(text: str) -> float:
    """Return the number in a factor above 1 such as ``1.5x``, or raise ValueError."""
    match = re.fullmatch(FACTOR, text)
    if match is None:
        raise ValueError(f"{text!r} must be a factor of more than 1, such as 1.5x")
    return float(match[3])


def parse_port_range(text: str) -> tuple[int, int]:
    """Return the first and last port in ``40000:41000`` or one port, or raise ValueError."""
    match = re.fullmatch(r"([0-9]{1,5})(?:[:-]([0-9]{1,5}))?", text.strip())
    if match:
        first, last = int(match.group(1)), int(match.group(2) or match.group(1))
        if 1 <= first <= last <= 65535:
            return first, last
    raise ValueError(f"{text!r} is not a range of ports: write, for example, 40000:41000")
