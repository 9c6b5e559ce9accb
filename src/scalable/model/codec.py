"""JSON forms: of most nouns, and of a deployment spec, which a detached cluster stores.
Amounts of a spec stay as written.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import UnionType
from typing import Any, Self, TypeVar, get_args, get_origin, get_type_hints

from scalable.model.components import ComponentSpec, TaskSpec, WorkerRange
from scalable.model.deployment import DeploymentSpec, KeepResults, ManagerSpec
from scalable.model.failures import RetryPolicy


class Noun:
    """Base class of dataclasses with a JSON form."""

    def to_dict(self) -> dict[str, Any]:
        """Return the attributes as plain JSON values."""
        return {name: _plain(each) for name, each in vars(self).items()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Decode the result of :meth:`to_dict`, ignoring unknown keys."""
        kinds = _kinds(cls)  # type: ignore[arg-type]
        return cls(
            **{key: _decoded(kinds[key], each) for key, each in data.items() if key in kinds}
        )


@lru_cache
def _kinds(cls: type) -> dict[str, Any]:
    return get_type_hints(cls)


def _decoded(kind: Any, value: Any) -> Any:
    """Return plain JSON values as an instance of an annotation."""
    if isinstance(kind, UnionType):  # with None
        kind = get_args(kind)[0]
    if isinstance(value, list | tuple):
        inner = get_args(kind)
        return tuple(_decoded(inner[0], each) for each in value) if inner[1:] else value
    if isinstance(value, Mapping) and get_origin(kind) is Mapping:
        return {key: _decoded(get_args(kind)[1], each) for key, each in value.items()}
    return kind.from_dict(value) if isinstance(value, Mapping) and kind is not Any else value


def _plain(value: Any) -> Any:
    """Replace dataclasses by dicts at any depth, without ``dataclasses.asdict``'s copies."""
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, Noun):
        return value.to_dict()
    if hasattr(value, "_asdict"):  # a named tuple
        return value._asdict()
    if dataclasses.is_dataclass(value):
        value = vars(value)
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, tuple | list):
        return list(map(_plain, value))
    return value


# A deployment spec --------------------------------------------------------------------------------

#: Version of the JSON form. A release reads only its own version.
VERSION = 1

_T = TypeVar("_T")


class SpecFormatError(ValueError):
    """A string is not a deployment spec of this version."""


def encode_spec(spec: DeploymentSpec) -> str:
    """Return a spec as JSON. Raise TypeError for an option that is not plain JSON."""
    for name, value in spec.options.items():
        _check_stored(value, name)
    fields = {field.name: getattr(spec, field.name) for field in dataclasses.fields(spec)}
    fields["components"] = {tag: _stored(part) for tag, part in spec.components.items()}
    fields["tasks"] = {name: _stored(task) for name, task in spec.tasks.items()}
    fields["options"] = dict(spec.options)
    fields["written_options"] = sorted(spec.written_options)
    fields["adaptive"] = None if spec.adaptive is None else _stored(spec.adaptive)
    fields["keep_results"] = None if spec.keep_results is None else _stored(spec.keep_results)
    fields["managers"] = [_stored(manager) for manager in spec.managers]
    return json.dumps({"version": VERSION, "spec": fields}, indent=1) + "\n"


def decode_spec(text: str) -> DeploymentSpec:
    """Decode the result of :func:`encode_spec`, or raise SpecFormatError."""
    try:
        data = json.loads(text)
        version, fields = data["version"], data.get("spec")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise SpecFormatError(f"not a deployment spec: {error}") from error
    if version != VERSION:
        raise SpecFormatError(
            f"a deployment spec of version {version!r}, but this release of scalable reads version "
            f"{VERSION}: use the release that started the cluster"
        )
    try:
        return _spec(dict(fields))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise SpecFormatError(f"not a deployment spec of version {VERSION}: {error}") from error


def _spec(fields: dict[str, Any]) -> DeploymentSpec:
    decoders: Mapping[str, Callable[[Any], Any]] = {
        "components": lambda value: _each(value, _component),
        "tasks": lambda value: _each(value, _task),
        "written_options": frozenset,
        "adaptive": _range,
        "keep_results": lambda value: None if value is None else _made(KeepResults, value),
        "managers": lambda value: tuple(_made(ManagerSpec, manager) for manager in value),
    }
    return _made(DeploymentSpec, fields, **decoders)


def _component(fields: Mapping[str, Any]) -> ComponentSpec:
    return _made(ComponentSpec, fields, workers=_range, tags=tuple, setup=tuple)


def _task(fields: Mapping[str, Any]) -> TaskSpec:
    return _made(TaskSpec, fields, outputs=tuple, after=tuple, retries=_policy)


def _policy(fields: Mapping[str, Any] | None) -> RetryPolicy | None:
    return None if fields is None else RetryPolicy.from_message(fields)


def _range(fields: Mapping[str, Any] | None) -> WorkerRange | None:
    return None if fields is None else _made(WorkerRange, fields)


def _each(fields: Mapping[str, Any], decode: Callable[[Any], _T]) -> dict[str, _T]:
    return {name: decode(value) for name, value in fields.items()}


def _made(cls: type[_T], fields: Mapping[str, Any], **decoders: Callable[[Any], Any]) -> _T:
    return cls(**{k: decoders[k](v) if k in decoders else v for k, v in fields.items()})


def _stored(noun: Any) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    for field in dataclasses.fields(noun):
        value = getattr(noun, field.name)
        if isinstance(value, Mapping):
            value = dict(value)
        elif isinstance(value, WorkerRange):
            value = _stored(value)
        elif isinstance(value, RetryPolicy):
            value = value.to_message()
        plain[field.name] = value
    return plain


def _check_stored(value: Any, path: str) -> None:
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        for key, item in value.items():
            _check_stored(item, f"{path}.{key}")
    elif isinstance(value, list):
        for number, item in enumerate(value):
            _check_stored(item, f"{path}[{number}]")
    elif value is not None and type(value) not in (bool, int, float, str):
        raise TypeError(f"option {path} is a {type(value).__name__}, which JSON cannot contain")
    elif isinstance(value, float) and math.isnan(value):
        raise TypeError(f"option {path} is NaN, which JSON cannot contain")
