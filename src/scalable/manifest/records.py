"""Conversion of maps in the document into pydantic models. Errors have positions."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from scalable.manifest.document import Node, Path, resolve_plain
from scalable.manifest.faults import E_BAD_OPTION, E_MISSING_KEY, Faults, suggest
from scalable.manifest.fields import Written
from scalable.model import Diagnostic

Model = TypeVar("Model", bound=BaseModel)
_SHOWN = 60
_PLAIN_WORDS = {
    "bool_type": "Input should be true or false",
    "tuple_type": "Input should be a list",
    "list_type": "Input should be a list",
    "float_type": "Input should be a number",
    "int_type": "Input should be a whole number",
    "string_type": "Input should be a string",
}


@dataclass(frozen=True)
class _Shape:
    """Shape that an annotation requires of a value."""

    #: Types of scalars that are read as the string in the file.
    kinds: tuple[type, ...] = ()
    model: type[BaseModel] | None = None
    #: Shape of the items of a list, or of the values of an open map.
    items: _Shape | None = None

    def below(self, part: str | int) -> _Shape:
        """Return the shape of a child."""
        if self.model and isinstance(part, str):
            return _shapes(self.model).get(part, _ANY)
        return self.items or _ANY


_ANY = _Shape()


@cache
def _shapes(model: type[BaseModel]) -> dict[str, _Shape]:
    shapes = {}
    for name, info in model.model_fields.items():
        shape = _joined([_shape(info.annotation), *map(_shape, info.metadata)])
        shapes[name] = shapes[info.alias or name] = shape
    return shapes


def _shape(annotation: Any) -> _Shape:
    if isinstance(annotation, Written):
        return _Shape(kinds=annotation.kinds)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return _Shape(model=annotation)
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Annotated, Union, UnionType):
        return _joined([_shape(argument) for argument in arguments])
    if not isinstance(origin, type) or not arguments:
        return _ANY
    return _Shape(items=_shape(arguments[-1 if issubclass(origin, Mapping) else 0]))


def _joined(shapes: list[_Shape]) -> _Shape:
    return _Shape(
        kinds=tuple(kind for shape in shapes for kind in shape.kinds),
        model=next((shape.model for shape in shapes if shape.model), None),
        items=next((shape.items for shape in shapes if shape.items), None),
    )


def _typed_value(node: Node, shape: _Shape) -> Any:
    """Return plain values for a model, without keys whose value is missing or invalid."""
    if node.is_scalar:
        # Not isinstance: a boolean is an int there, and `account: true` is a mistake. An empty
        # value is read as a string, `null` and `~` are not.
        as_written = type(node.value) in shape.kinds and not (node.value is None and node.written)
        return node.written if as_written else node.value
    if isinstance(node.value, tuple):
        below = shape.below(0)
        return [_typed_value(item, below) for item in node.value if not item.broken]
    values = {
        key: _typed_value(child, shape.below(key))
        for key, child in node.entries.items()
        if not child.broken
    }
    return {key: value for key, value in values.items() if value is not None}


def as_table(node: Node, path: Path, faults: Faults) -> Node | None:
    """Return a map, empty without a value. Report an error and return None for another node."""
    if isinstance(node.value, dict):
        return node
    if node.is_null:
        return Node({}, node.start, node.key)
    if not node.broken:
        message = f"{path[-1] if path else 'the manifest'} must be a map of keys to values"
        faults.add(E_BAD_OPTION, path, node.place, message, "write `key: value` lines below it")
    return None


@dataclass(frozen=True)
class RecordWords:
    """Words in messages about one kind of record."""

    #: Error code for an unknown key.
    unknown_code: str = E_BAD_OPTION
    #: Name for a key of the record.
    noun: str = "key here"
    #: Keys to suggest in addition to the model's own.
    also_known: tuple[str, ...] = ()


def read_record(
    model: type[Model], node: Node, path: Path, faults: Faults, words: RecordWords
) -> Model | None:
    """Return the record of a node, or None after reporting its errors."""
    table = as_table(node, path, faults)
    if table is None:
        return None
    _build(model)
    try:
        # As JSON: only then do strict models accept lists for tuples and strings for enumerations.
        return model.model_validate_json(json.dumps(_typed_value(table, _Shape(model=model))))
    except ValidationError as error:
        for found in error.errors(include_url=False):
            _file(found, model, table, path, faults, words)
        return None


def _build(model: type[BaseModel]) -> None:
    """Build a model's validator without pydantic's plugins, unless it is built already."""
    if model.__pydantic_complete__:
        return
    # Pydantic looks for plugins in the metadata of all installed packages, which takes longer than
    # building all models.
    before = os.environ.get("PYDANTIC_DISABLE_PLUGINS")
    os.environ["PYDANTIC_DISABLE_PLUGINS"] = "__all__"
    try:
        model.model_rebuild()
    finally:
        if before is None:
            del os.environ["PYDANTIC_DISABLE_PLUGINS"]
        else:
            os.environ["PYDANTIC_DISABLE_PLUGINS"] = before


def _file(
    found: ErrorDetails,
    model: type[BaseModel],
    table: Node,
    path: Path,
    faults: Faults,
    words: RecordWords,
) -> None:
    kind, location = found["type"], found["loc"]
    key = str(location[-1]) if location else ""
    if kind == "missing":
        at, below = _existing(table, location[:-1])
        written = at.child(key)
        if written is None or written.is_null:
            hint = _described(model, location) or f"add `{key}: ...`"
            faults.add(E_MISSING_KEY, (*path, *below, key), at.place, f"{key} is missing", hint)
        return
    at, below = _existing(table, location)
    full = (*path, *below)
    if kind == "extra_forbidden":
        if len(below) == 1:
            known = (*_keys(model), *words.also_known)
            advice: Mapping[str, str] = getattr(model, "advice", {})
        else:
            words, advice = RecordWords(), {}
            shape = _Shape(model=model)
            for part in below[:-1]:
                shape = shape.below(part)
            known = _keys(shape.model) if shape.model else ()
        hint = advice.get(key) or suggest(key, known)
        faults.add(words.unknown_code, full, at.key, f"unknown {words.noun}: {key!r}", hint)
        return
    code = kind if kind.startswith("E_") else E_BAD_OPTION
    place = at.key if key == "[key]" else at.place
    own = found["ctx"]["hint"] if kind in ("name", "secret") else None
    hint = own or _hint(found) or _described(model, location) or "see `scalable schema`"
    faults.add(code, full, place, _message(found, code, full, below), hint, secret=kind == "secret")


def _existing(table: Node, location: tuple[int | str, ...]) -> tuple[Node, Path]:
    """Return the node at a pydantic location and its path, skipping members of unions."""
    node = table
    path: Path = ()
    for part in location:
        step = node.child(part)
        if step is not None:
            node, path = step, (*path, part)
    return node, path


def _message(found: ErrorDetails, code: str, full: Path, below: Path) -> str:
    text = _PLAIN_WORDS.get(found["type"], found["msg"])
    if found["type"] in ("name", "secret"):  # the message quotes the value
        return text
    name = Diagnostic("", below or full[-1:], "").dotted_path
    shown = json.dumps(found["input"], ensure_ascii=False, default=repr)
    shown = shown if len(shown) <= _SHOWN else shown[: _SHOWN - 3] + "..."
    if code != E_BAD_OPTION:
        return f"{text}, not {shown}"
    if text.startswith("Input should "):
        return f"{name} must {text.removeprefix('Input should ')}, not {shown}"
    if text.startswith("must "):
        return f"{name} {text}"
    return f"{name}: {text.removeprefix('Value error, ')}"


def _hint(found: ErrorDetails) -> str | None:
    kind, value = found["type"], found["input"]
    if kind in ("int_type", "float_type", "bool_type", "E_BAD_MAX_WORKERS"):
        typed = resolve_plain(value.strip()) if isinstance(value, str) else value
        if isinstance(value, str) and type(typed) in (int, float, bool):
            return f"write {value.strip()} without quotes"
        if kind == "bool_type":
            return "write true or false"
        return "write a whole number such as 4" if kind != "float_type" else "write a number"
    if kind == "string_type" and isinstance(value, bool):
        return f'a string is expected: write "{str(value).lower()}" in quotes'
    if kind in ("literal_error", "enum") and isinstance(value, str):
        choices = found["ctx"]["expected"].replace(" or ", ", ").split(", ")
        return suggest(value, [choice.strip("'") for choice in choices])
    return None


def _keys(model: type[BaseModel]) -> tuple[str, ...]:
    return tuple(info.alias or name for name, info in model.model_fields.items())


def _described(model: type[BaseModel], location: tuple[int | str, ...]) -> str | None:
    info = model.model_fields.get(str(location[0])) if location else None
    return f"{location[0]}: {info.description}" if info and info.description else None
