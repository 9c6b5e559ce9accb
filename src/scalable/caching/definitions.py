"""Content of functions and classes that determines what they do."""

from __future__ import annotations

import dataclasses
import enum
import functools
import inspect
import re
import sys
import types
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

#: Class attributes that Python or a library derives from others; see :func:`declared`.
_MADE: Final = frozenset(
    {
        "__dict__",
        "__weakref__",
        "__doc__",
        "__module__",
        "__qualname__",
        "__firstlineno__",
        "__static_attributes__",
        "__annotations__",
        "__annotate__",
        "__annotate_func__",
        "__annotations_cache__",
        "__dataclass_fields__",
        "__dataclass_params__",
        "__slotnames__",  # pickling an object of the class writes it
        "__abstractmethods__",
        "_abc_impl",
        "__parameters__",
        "__orig_bases__",
        "_value2member_map_",  # an enumeration adds combined flags as they are used
    }
)
#: Content of an enclosing function's variable that is not assigned yet.
_EMPTY: Final = (..., "not assigned")
_ADDRESS: Final = " at 0x"
_NAME: Final = re.compile(r"[^\W\d]\w*")


def shape(code: types.CodeType) -> list[Any]:
    """Return what a code object does, without its file and line numbers."""
    return [
        code.co_code,
        [shape(c) if isinstance(c, types.CodeType) else c for c in code.co_consts],
        code.co_names,
        code.co_varnames,
        code.co_freevars,
        code.co_cellvars,
        [code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags],
        code.co_exceptiontable,
    ]


def cell_values(cells: tuple[types.CellType, ...]) -> tuple[Any, ...]:
    """Return the values of a function's closure variables."""
    values = []
    for cell in cells:
        try:
            values.append(cell.cell_contents)
        except ValueError:  # not assigned yet
            values.append(_EMPTY)
    return tuple(values)


def attributes(function: types.FunctionType) -> dict[str, Any]:
    """Return the attributes that were set on a function, without ``__wrapped__``."""
    return {name: value for name, value in vars(function).items() if name != "__wrapped__"}


def members(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield the name and the value of each attribute that a class defines itself."""
    for name in sorted(vars(kind)):
        value = _unwrapped(vars(kind)[name])
        if name not in _MADE and not isinstance(value, types.MemberDescriptorType):
            yield name, value


def _unwrapped(value: Any) -> Any:
    """Return the functions of a descriptor, or the value itself."""
    if isinstance(value, staticmethod | classmethod):
        return [type(value).__name__, value.__func__]
    if isinstance(value, property):
        return ["property", value.fget, value.fset, value.fdel]
    if isinstance(value, functools.cached_property):
        return ["cached_property", value.func]
    return value


def declared(kind: type) -> list[Any]:
    """Return a class's docstring, annotations and generic bases, which programs may read."""
    text = vars(kind).get("__doc__")
    return [
        text if isinstance(text, str) and _ADDRESS not in text else None,
        annotated(kind),
        [_as_text(base) for base in vars(kind).get("__orig_bases__", ())],
    ]


def metadata(kind: type) -> list[Any]:
    """Return the metadata of dataclass fields, and the values of enumeration members."""
    fields = vars(kind).get("__dataclass_fields__", {}) if dataclasses.is_dataclass(kind) else {}
    found: list[Any] = [(name, dict(one.metadata)) for name, one in fields.items() if one.metadata]
    if isinstance(kind, enum.EnumMeta):
        found += [(name, member.value) for name, member in vars(kind)["_member_map_"].items()]
    return found


def annotated(item: Any) -> list[tuple[str, str]]:
    """Return annotations as names and strings, without those that cannot be evaluated."""
    with suppress(Exception):  # annotations are expressions of the user
        return [(name, _as_text(kind)) for name, kind in inspect.get_annotations(item).items()]
    return []


def annotating(kind: type) -> Iterator[type]:
    """Yield the classes to which a class's annotations refer."""
    with suppress(Exception):  # annotations are expressions of the user
        space = vars(sys.modules.get(kind.__module__, types))
        for given in inspect.get_annotations(kind).values():
            yield from _classes(given, space)


def _classes(given: Any, space: dict[str, Any]) -> Iterator[type]:
    if isinstance(given, str):
        found = (space.get(name) for name in _NAME.findall(given))
        yield from (one for one in found if isinstance(one, type))
    elif isinstance(given, type) and not isinstance(given, types.GenericAlias):
        yield given
    else:
        for one in getattr(given, "__args__", ()):
            yield from _classes(one, space)


def _as_text(annotation: Any) -> str:
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return str(text).partition(_ADDRESS)[0]
