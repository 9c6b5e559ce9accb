"""Content of functions and classes: what their definitions are made of."""

from __future__ import annotations

import abc
import contextvars
import enum
import inspect
import re
import sys
import threading
import types
import typing
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Final

from scalable.cache.content import LOCKS, Contents, state_of
from scalable.cache.errors import UnstableValueError

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
        # pydantic makes these from fields, annotations and validators, with addresses of classes.
        "__pydantic_core_schema__",
        "__pydantic_validator__",
        "__pydantic_serializer__",
        "__pydantic_parent_namespace__",
        "__pydantic_setattr_handlers__",
        "__pydantic_complete__",
        "__pydantic_fields_complete__",
    }
)
#: Content of an enclosing function's variable that is not assigned yet.
_EMPTY: Final = (..., "not assigned")
_ADDRESS: Final = " at 0x"
_NAME: Final = re.compile(r"[^\W\d]\w*")


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
    """Return the attributes set on a function, without ``__wrapped__``."""
    return {name: value for name, value in vars(function).items() if name != "__wrapped__"}


def members(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield name and value of each attribute defined by a class itself, in its order."""
    for name, given in vars(kind).items():
        if name in _MADE or isinstance(given, types.MemberDescriptorType):
            continue
        if type(given).__module__ == "_ctypes" and "_fields_" in vars(kind):
            continue  # made from the declared fields
        if name == "__signature__" and not isinstance(given, inspect.Signature):
            continue  # pydantic makes it when it is read
        yield name, given


def opened(value: Any, code_id: Callable[[Any], str], around: tuple[Any, ...] = ()) -> Any:
    """Return the parts of a class attribute that cannot be pickled.
    A worker makes its own from the same definition: the type, and what the object holds here.
    Raises UnstableValueError if the object holds something without content.
    """
    if any(value is one for one in around):
        return ["around", len(around)]
    try:
        Contents(code_id).part(value)
    except UnstableValueError:
        within = held(value)
        if within is None:
            raise
        return [type(value), [opened(item, code_id, (*around, value)) for item in within]]
    return value


def held(value: Any) -> list[Any] | None:
    """Return what an object without stable content holds, or None if that cannot be seen."""
    if isinstance(value, contextvars.ContextVar):
        with suppress(LookupError):
            return [value.name, value.get()]
        return [value.name]
    if isinstance(value, LOCKS):
        state: dict[Any, Any] = {}
    elif isinstance(value, list | tuple):
        return list(value)
    elif isinstance(value, dict):
        state = value
    elif all(map(_is_in_python, type(value).__mro__)):
        state = state_of(value)
    else:
        return None
    return [one for item in state.items() for one in item]


def _is_in_python(kind: type) -> bool:
    """Return whether all that a class keeps of an object is in the object's attributes."""
    if kind in (object, threading.local):
        return True
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return kind.__module__ == "__main__" or (isinstance(file, str) and file.endswith(".py"))


def declared(kind: type) -> list[Any]:
    """Return a class's docstring, annotations and generic bases, which programs may read."""
    text = vars(kind).get("__doc__")
    return [
        text if isinstance(text, str) and _ADDRESS not in text else None,
        annotated(kind),
        [*vars(kind).get("__orig_bases__", ())],
    ]


def metadata(kind: type) -> list[Any]:
    """Return the fields of a dataclass, the members of an enumeration, and registered classes."""
    found: list[Any] = []
    if "__dataclass_fields__" in vars(kind):
        found.append(repr(vars(kind)["__dataclass_params__"]))
        for name, one in vars(kind)["__dataclass_fields__"].items():
            flags = (one.init, one.repr, one.hash, one.compare, one.kw_only)
            found.append((name, flags, one.default, one.default_factory, dict(one.metadata)))
    if isinstance(kind, enum.EnumMeta):
        for name, member in vars(kind)["_member_map_"].items():
            own = [(n, v) for n, v in vars(member).items() if not n.endswith("_")]
            found.append((name, member.value, own))
    if "_abc_impl" in vars(kind):
        dump: Any = vars(abc)["_get_dump"]
        registered = (one() for one in dump(kind)[0])
        found.append({f"{one.__module__}.{one.__qualname__}" for one in registered if one})
    return found


def annotated(item: Any) -> list[tuple[str, Any]]:
    """Return annotations as names and values, or as strings if they cannot be evaluated.
    Decorators and libraries convert values by them.
    """
    with suppress(Exception):  # annotations are expressions of the user
        space = _space(item)
        given = inspect.get_annotations(item)
        return [(name, _meant(annotation, space)) for name, annotation in given.items()]
    return []


def _meant(annotation: Any, space: dict[str, Any]) -> Any:
    classes = [*_classes(annotation, space)]
    if isinstance(annotation, str):
        with suppress(Exception):  # names of other scopes, or only for type checkers
            return [annotation, eval(annotation, space), classes]  # noqa: S307 - as Python does
    return [annotation, classes]


def _space(item: Any) -> dict[str, Any]:
    found = getattr(item, "__globals__", None) or vars(sys.modules.get(item.__module__, types))
    return found if isinstance(found, dict) and "__builtins__" in found else {}


def annotating(kind: type) -> Iterator[type]:
    """Yield the classes that a class's annotations refer to."""
    with suppress(Exception):  # annotations are expressions of the user
        for given in inspect.get_annotations(kind).values():
            yield from _classes(given, _space(kind))


def _classes(given: Any, space: dict[str, Any]) -> Iterator[type]:
    if isinstance(given, typing.ForwardRef):
        given = given.__forward_arg__
    if isinstance(given, str):
        found = (space.get(name) for name in _NAME.findall(given))
        yield from (one for one in found if isinstance(one, type))
    elif isinstance(given, type) and not isinstance(given, types.GenericAlias):
        yield given
    else:
        for one in getattr(given, "__args__", ()):
            yield from _classes(one, space)
