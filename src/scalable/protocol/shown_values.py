"""Short strings for the arguments of tasks, made without running the user's code.

A user's ``__repr__`` may raise, hang, be huge or change state, so that none is called. Instances of
unknown classes are shown by class name and attributes.
"""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import fractions
import pathlib
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, islice
from types import BuiltinFunctionType, FunctionType, GetSetDescriptorType, MethodType, ModuleType
from typing import Any

#: Maximum characters of the arguments of one task, and of one value among them.
MOST_CHARACTERS = 2000
MOST_OF_VALUE = 400
#: Maximum shown characters of a string, and shown entries of a collection.
_TEXT = 120
_ENTRIES = 6
_DEPTH = 3
#: Maximum bits of an integer that is shown in full.
_INTEGER_BITS = 256
_CUT = "..."

#: Types whose ``repr`` is short, quick, and not the user's.
_PLAIN = frozenset(
    {
        type(None), bool, float, complex, type(Ellipsis), type(NotImplemented), range,
        dt.date, dt.time, dt.timedelta, uuid.UUID, fractions.Fraction,
    }
)  # fmt: skip
_PATHS = frozenset({pathlib.PosixPath, pathlib.PurePosixPath, pathlib.PureWindowsPath})
#: Libraries whose arrays and tables have their shape and type without computation.
_OF_ARRAYS = frozenset(
    {"numpy", "pandas", "xarray", "dask", "scipy", "polars", "pyarrow", "cupy", "torch"}
)
#: Scalars of these libraries with a short ``repr``.
_SCALARS = frozenset({"Timestamp", "Timedelta", "Period", "NaTType"})


def shown_arguments(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Return a task's arguments as a short string in under a millisecond."""
    parts: list[str] = []
    left = MOST_CHARACTERS
    for name, value in chain((("", value) for value in args), kwargs.items()):
        part = (f"{name[:_TEXT]}=" if name else "") + shown(value, min(MOST_OF_VALUE, left))
        left -= len(part) + 2
        if left < len(_CUT):
            parts.append(_CUT)
            break
        parts.append(part)
    return f"({', '.join(parts)})"


def shown(value: Any, most: int = MOST_OF_VALUE) -> str:
    """Return a value as a string of at most ``most`` characters. Runs no code of its class."""
    try:
        text = _shown(value, _DEPTH)
    except Exception as error:  # noqa: BLE001 - another thread may change the value meanwhile
        text = f"<{_class_name(type(value))}, not shown: {type(error).__name__}>"
    return text if len(text) <= most else text[: max(0, most - len(_CUT))] + _CUT


def _shown(value: Any, depth: int) -> str:
    kind = type(value)
    if kind in _PLAIN:
        return repr(value)
    if kind in _EXACT:
        return _EXACT[kind](value)
    if _module(kind).partition(".")[0] in _OF_ARRAYS:
        return _of_library(value)
    show = next((show for base, show in _BY_BASE if issubclass(kind, base)), _instance)
    return show(value, depth)


def _integer(value: int) -> str:
    bits = int.bit_length(value)
    return repr(value) if bits <= _INTEGER_BITS else f"<int of {bits} bits>"


def _text(value: str | bytes | bytearray) -> str:
    if len(value) <= _TEXT:
        return repr(value)
    unit = "characters" if type(value) is str else "bytes"
    return f"{value[:_TEXT]!r}{_CUT} ({len(value)} {unit})"


def _decimal(value: decimal.Decimal) -> str:
    return repr(value) if len(value.as_tuple().digits) <= _TEXT else "<Decimal>"


def _function(value: Any) -> str:
    return f"<function {str(getattr(value, '__qualname__', '?'))[:_TEXT]}>"


_EXACT: dict[type, Callable[[Any], str]] = {
    int: _integer,
    str: _text,
    bytes: _text,
    bytearray: _text,
    decimal.Decimal: _decimal,
    dt.datetime: lambda value: f"datetime({value:%Y-%m-%d %H:%M:%S})",
    FunctionType: _function,
    BuiltinFunctionType: _function,
    MethodType: lambda value: _function(value.__func__),
    ModuleType: lambda _: "<module>",
    memoryview: lambda value: f"<memoryview of {value.nbytes} bytes>",
    **{kind: lambda value: f"{type(value).__name__}({_text(str(value))})" for kind in _PATHS},
}


def _listed(entries: Iterable[Any], count: int, depth: int) -> str:
    if depth <= 0:
        return _CUT if count else ""
    texts = [_shown(entry, depth - 1) for entry in islice(entries, _ENTRIES)]
    return ", ".join(texts) + (f", {_CUT} ({count} entries)" if count > len(texts) else "")


def _list(value: list[Any], depth: int) -> str:
    listed = _listed(list.__iter__(value), list.__len__(value), depth)
    return _named(value, list, f"[{listed}]")


def _tuple(value: tuple[Any, ...], depth: int) -> str:
    count = tuple.__len__(value)
    names = _of_class(type(value), "_fields")
    if isinstance(names, tuple) and len(names) == count:
        pairs = zip(names, tuple.__iter__(value), strict=True)
        return f"{_class_name(type(value))}({_assigned(pairs, count, depth)})"
    listed = _listed(tuple.__iter__(value), count, depth)
    return _named(value, tuple, f"({listed},)" if count == 1 else f"({listed})")


def _dict(value: dict[Any, Any], depth: int) -> str:
    count = dict.__len__(value)
    if depth <= 0:
        return _named(value, dict, f"{{{_CUT if count else ''}}}")
    pairs = islice(dict.items(value), _ENTRIES)
    texts = [f"{_shown(key, depth - 1)}: {_shown(entry, depth - 1)}" for key, entry in pairs]
    more = f", {_CUT} ({count} entries)" if count > len(texts) else ""
    return _named(value, dict, f"{{{', '.join(texts)}{more}}}")


def _set(value: Any, depth: int) -> str:
    base = frozenset if issubclass(type(value), frozenset) else set
    listed = _listed(base.__iter__(value), base.__len__(value), depth)
    return f"{_class_name(type(value))}({{{listed}}})" if base is frozenset else f"{{{listed}}}"


def _derived(plain: Callable[[Any], Any]) -> Callable[[Any, int], str]:
    """Return a function that shows an instance of a class derived from a plain type."""
    return lambda value, _: f"{_class_name(type(value))}({_shown(plain(value), 0)})"


def _member(value: Any, _: int) -> str:
    return f"{_class_name(type(value))}.{attributes_of(value).get('_name_', '?')}"


#: Function that shows the instances of a base class. The plain values of classes that derive from a
#: plain type are read without the code of the class.
_BY_BASE: tuple[tuple[type, Callable[[Any, int], str]], ...] = (
    (list, _list),
    (tuple, _tuple),
    (dict, _dict),
    (set, _set),
    (frozenset, _set),
    (type, lambda value, _: f"<class {_class_name(value)}>"),
    (enum.Enum, _member),
    (str, _derived(str.__str__)),
    (bytes, _derived(lambda value: bytes.__getitem__(value, slice(None)))),
    (int, _derived(int.__int__)),
    (float, _derived(float.__float__)),
)


def _named(value: Any, base: type, text: str) -> str:
    """Return the text of a collection, with its class name unless that is ``base``."""
    return text if type(value) is base else f"{_class_name(type(value))}({text})"


def _of_library(value: Any) -> str:
    """Return class, dtype and shape of an array or table, and a small scalar as it is."""
    kind = type(value)
    if _class_name(kind) in _SCALARS or (
        _module(kind) == "numpy" and getattr(value, "shape", None) == () and value.itemsize <= 32
    ):
        return str(repr(value))[:_TEXT]
    facts = [_class_name(kind)]
    shape, dtype = (getattr(value, name, None) for name in ("shape", "dtype"))
    if dtype is not None:
        facts.append(str(dtype)[:_TEXT])
    if isinstance(shape, tuple):
        facts.append(f"shape {' x '.join(str(length) for length in shape) or '()'}"[:_TEXT])
    return f"<{' '.join(facts)}>"


def _instance(value: Any, depth: int) -> str:
    attributes = attributes_of(value)
    name = _class_name(type(value))
    if not attributes:
        return f"<{name}>"
    if depth <= 1:
        return f"{name}({_CUT})"
    pairs = [(key, each) for key, each in islice(attributes.items(), _ENTRIES + 1)]
    return f"{name}({_assigned(pairs, len(attributes), depth)})"


def _assigned(pairs: Iterable[tuple[Any, Any]], count: int, depth: int) -> str:
    if depth <= 0:
        return _CUT
    texts = [
        f"{key[:_TEXT] if type(key) is str else '?'}={_shown(each, depth - 1)}"
        for key, each in islice(pairs, _ENTRIES)
    ]
    return ", ".join(texts) + (f", {_CUT}" if count > len(texts) else "")


def attributes_of(value: Any) -> dict[str, Any]:
    """Return the attributes of an instance, read without the code of its class."""
    for base in _bases(type(value)):
        if "__slots__" in (own := _namespace(base)):
            names = own["__slots__"]
            slots = (names,) if isinstance(names, str) else tuple(names)
            found = {n: own[n].__get__(value) for n in slots if _is_slot(own.get(n), value)}
            if found:
                return found
        described = own.get("__dict__")
        if isinstance(described, GetSetDescriptorType):
            attributes = described.__get__(value)
            return attributes if isinstance(attributes, dict) else {}
    return {}


def _is_slot(descriptor: Any, value: Any) -> bool:
    if type(descriptor).__name__ != "member_descriptor":
        return False
    try:
        descriptor.__get__(value)
    except AttributeError:
        return False
    return True


def _bases(kind: type) -> tuple[type, ...]:
    found: tuple[type, ...] = type.__dict__["__mro__"].__get__(kind)
    return found


def _namespace(kind: type) -> Mapping[str, Any]:
    found: Mapping[str, Any] = type.__dict__["__dict__"].__get__(kind)
    return found


def _of_class(kind: type, name: str) -> Any:
    spaces = map(_namespace, _bases(kind))
    return next((space[name] for space in spaces if name in space), None)


def _module(kind: type) -> str:
    return str(type.__dict__["__module__"].__get__(kind))


def _class_name(kind: type) -> str:
    return str(type.__dict__["__name__"].__get__(kind))[:_TEXT]
