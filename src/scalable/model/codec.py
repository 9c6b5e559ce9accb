"""JSON form of a deployment spec, as stored by a detached cluster. Amounts stay as written."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from scalable.model.components import ComponentSpec, TaskSpec, WorkerRange
from scalable.model.deployment import DeploymentSpec, KeepResults, ManagerSpec
from scalable.model.failures import RetryPolicy

#: Version of the JSON form. A release reads only its own version.
VERSION = 1

_T = TypeVar("_T")


class SpecFormatError(ValueError):
    """A string is not a deployment spec of this version."""


def encode_spec(spec: DeploymentSpec) -> str:
    """Return a spec as JSON. Raise TypeError for an option that is not plain JSON."""
    for name, value in spec.options.items():
        _check_plain(value, name)
    fields = {field.name: getattr(spec, field.name) for field in dataclasses.fields(spec)}
    fields["components"] = {tag: _plain(part) for tag, part in spec.components.items()}
    fields["tasks"] = {name: _plain(task) for name, task in spec.tasks.items()}
    fields["options"] = dict(spec.options)
    fields["written_options"] = sorted(spec.written_options)
    fields["adaptive"] = None if spec.adaptive is None else _plain(spec.adaptive)
    fields["keep_results"] = None if spec.keep_results is None else _plain(spec.keep_results)
    fields["managers"] = [_plain(manager) for manager in spec.managers]
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


def _plain(noun: Any) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    for field in dataclasses.fields(noun):
        value = getattr(noun, field.name)
        if isinstance(value, Mapping):
            value = dict(value)
        elif isinstance(value, WorkerRange):
            value = _plain(value)
        elif isinstance(value, RetryPolicy):
            value = value.to_message()
        plain[field.name] = value
    return plain


def _check_plain(value: Any, path: str) -> None:
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        for key, item in value.items():
            _check_plain(item, f"{path}.{key}")
    elif isinstance(value, list):
        for number, item in enumerate(value):
            _check_plain(item, f"{path}[{number}]")
    elif value is not None and type(value) not in (bool, int, float, str):
        raise TypeError(f"option {path} is a {type(value).__name__}, which JSON cannot contain")
    elif isinstance(value, float) and math.isnan(value):
        raise TypeError(f"option {path} is NaN, which JSON cannot contain")
