"""Decoder of plans in their JSON form, the result of :meth:`scalable.model.Plan.to_dict`."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from scalable.model.plan import Plan

#: Version of the JSON value in which ``scalable plan --format json`` prints a plan.
VERSION = 1

#: Numbers of a plan are less than this.
_MOST = 1e18

_T = TypeVar("_T")


class PlanFormatError(ValueError):
    """A JSON value that is not a plan. The message names the key."""


def decode_plan(data: Any) -> Plan:
    """Return a plan from its JSON form, bare or as ``{"version": 1, "plan": ...}``.
    Unknown keys are ignored. Other values raise PlanFormatError.
    """
    if isinstance(data, Mapping) and "plan" in data:
        if data.get("version") != VERSION:
            raise PlanFormatError(
                f"version {data.get('version')!r} is not known; this release reads {VERSION}"
            )
        data = data["plan"]
    plan = _object(Plan, data, "plan")
    for tag, count in plan.scale_plan.workers_by_tag.items():
        if count < 0:
            raise PlanFormatError(f"plan.scale_plan.workers_by_tag.{tag} is {count}, less than 0")
    if not 0 <= plan.confidence <= 1:
        raise PlanFormatError(f"plan.confidence is {plan.confidence}, not between 0 and 1")
    for name in ("deadline_s", "budget"):
        value = getattr(plan, name)
        if value is not None and value <= 0:
            raise PlanFormatError(f"plan.{name} is {value}, not more than 0")
    return plan


def _object(cls: type[_T], data: Any, path: str) -> _T:
    """Return a dataclass from a JSON object, with each value checked against the field's type."""
    if not isinstance(data, Mapping):
        raise _wrong(path, "an object", data)
    kinds, values = typing.get_type_hints(cls), {}
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]
        if field.name in data:
            values[field.name] = _value(kinds[field.name], data[field.name], f"{path}.{field.name}")
        elif field.default is field.default_factory is dataclasses.MISSING:
            raise PlanFormatError(f"{path} has no {field.name!r}")
    return cls(**values)


def _value(kind: Any, data: Any, path: str) -> Any:
    if dataclasses.is_dataclass(kind):
        return _object(typing.cast("type[Any]", kind), data, path)
    of, parts = typing.get_origin(kind), typing.get_args(kind)
    if of in (types.UnionType, typing.Union):
        if data is None:
            return None
        (kind,) = (part for part in parts if part is not types.NoneType)
        return _value(kind, data, path)
    if of is tuple:
        if not isinstance(data, list):
            raise _wrong(path, "a list", data)
        each = parts[:1] * len(data) if parts[-1] is Ellipsis else parts
        if len(each) != len(data):
            raise PlanFormatError(f"{path} has {len(data)} values instead of {len(each)}")
        paths = (f"{path}[{i}]" for i in range(len(data)))
        return tuple(map(_value, each, data, paths))
    if of is not None:  # a mapping, the only other container
        if not isinstance(data, Mapping):
            raise _wrong(path, "an object", data)
        return {name: _value(parts[1], v, f"{path}.{name}") for name, v in data.items()}
    return _plain(kind, data, path)


def _plain(kind: Any, data: Any, path: str) -> Any:
    if kind is float and type(data) in (int, float) and abs(data) < _MOST:  # not true for NaN
        return data
    if kind is not float and type(data) is kind:
        return data
    raise _wrong(path, {float: "a number", int: "a whole number"}.get(kind, "a text"), data)


def _wrong(path: str, expected: str, data: Any) -> PlanFormatError:
    shown = repr(data)
    return PlanFormatError(f"{path} is not {expected}: {shown[:37]}{'...' * (len(shown) > 40)}")
