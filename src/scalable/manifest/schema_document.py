"""JSON Schema of the manifest, made from the models that check it.
Every document that loads matches the schema. Only loading checks references, the order of bounds,
the types of variables' values, and overlays.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from scalable.manifest.check import OptionModels
from scalable.manifest.fields import any_case
from scalable.manifest.schema import (
    OVERLAY_SECTIONS,
    REQUIRED_SECTIONS,
    SECTIONS,
    Component,
    Managers,
    Project,
    Target,
    Task,
)
from scalable.model import names

Schema = dict[str, Any]

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
#: A value that consists of one variable, and a string that contains one.
_VARIABLE = {"type": "string", "pattern": r"^\$\{[A-Za-z_][A-Za-z0-9_]*(:-[^{}]*)?\}$"}
_WITH_VARIABLE = {"type": "string", "pattern": r"\$\{"}
_NULL = {"type": "null"}


def json_schema(option_models: OptionModels) -> Schema:
    """Return the JSON Schema of the manifest (draft 2020-12) as plain JSON values.
    ``option_models`` maps providers to models, or to None if the provider accepts any option.
    """
    defs = _definitions(option_models)
    sections = {
        "version": {"anyOf": [{"const": 1, "type": "integer"}, _ref("variable")]},
        "project": _ref("project"),
        "targets": {
            "type": "object",
            "minProperties": 1,
            "propertyNames": {"pattern": f"^{names.TARGET.pattern}$"},
            "additionalProperties": _ref("target"),
        },
        "components": _components(minimum=1),
        "tasks": _nullable(_open(_ref("task"))),
        "overlays": _nullable(_open(_nullable(_ref("overlay")))),
        "managers": _nullable(_managers()),
    }
    return {
        "$schema": _DIALECT,
        "title": "scalable manifest",
        "type": "object",
        "additionalProperties": False,
        "required": list(REQUIRED_SECTIONS),
        "properties": {key: {"description": SECTIONS[key], **sections[key]} for key in SECTIONS},
        "$defs": {**defs, "overlay": _overlay(), "variable": _VARIABLE, "text": _WITH_VARIABLE},
    }


def _definitions(option_models: OptionModels) -> Schema:
    models: list[type[BaseModel]] = [Project, Target, Component, Task, Managers]
    models += [model for model in option_models.values() if model is not None]
    refs, made = models_json_schema(
        [(model, "validation") for model in dict.fromkeys(models)], ref_template="#/$defs/{model}"
    )
    raw: Schema = made.get("$defs", {})

    def of(model: type[BaseModel]) -> Schema:
        found: Schema = raw[refs[model, "validation"]["$ref"].removeprefix("#/$defs/")]
        return _relaxed(found)

    target = of(Target)
    named = {
        "project": of(Project),
        "component": of(Component),
        "task": of(Task),
        "managers": of(Managers),
        **{
            f"target_{name}": _target(target, None if model is None else of(model))
            for name, model in option_models.items()
        },
        "target": _any_target(target, option_models),
    }
    for name in ("project", "component", "task", "target"):
        whole = named[name].items()
        named[f"partial_{name}"] = {k: v for k, v in whole if k not in ("required", "allOf")}
    inlined = {reference["$ref"].removeprefix("#/$defs/") for reference in refs.values()}
    nested = {name: _relaxed(schema) for name, schema in raw.items() if name not in inlined}
    return {**nested, **named}


def _target(common: Schema, own: Schema | None) -> Schema:
    if own is None:
        return {"type": "object", "properties": common["properties"]}
    return {
        "type": "object",
        "properties": {**own["properties"], **common["properties"]},
        "required": own.get("required", []),
        "additionalProperties": own.get("additionalProperties", False),
    }


def _any_target(common: Schema, option_models: Mapping[str, Any]) -> Schema:
    """Return the schema of a target, with one branch for each provider."""
    named = {
        name: {"type": "string", "pattern": rf"^\s*{any_case(name)}\s*$"} for name in option_models
    }
    described = {"description": common["properties"]["provider"].get("description", "")}
    known = [{"enum": sorted(option_models)}, _WITH_VARIABLE, *named.values()]
    provider = {**described, "anyOf": known}
    branches = [
        {
            "if": {"properties": {"provider": pattern}, "required": ["provider"]},
            "then": _ref(f"target_{name}"),
        }
        for name, pattern in named.items()
    ]
    return {
        "type": "object",
        "properties": {**common["properties"], "provider": provider},
        "required": ["provider"],
        "allOf": branches,
    }


def _overlay() -> Schema:
    sections: Schema = {
        "project": _ref("partial_project"),
        "targets": _open(_ref("partial_target")),
        "components": _components(minimum=0, name="partial_component"),
        "tasks": _open(_ref("partial_task")),
        "managers": _managers(),
    }
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": {key: _nullable(sections[key]) for key in OVERLAY_SECTIONS},
    }


def _managers() -> Schema:
    return {"anyOf": [_ref("managers/properties/places"), _ref("managers")]}


def _components(*, minimum: int, name: str = "component") -> Schema:
    return {
        "type": "object",
        "minProperties": minimum,
        "propertyNames": {"pattern": f"^{names.TAG.pattern}$"},
        "additionalProperties": _nullable(_ref(name)),
    }


def _relaxed(schema: Schema) -> Schema:
    """Return a schema that also allows an empty value, or a variable."""
    relaxed = {key: _relaxed_part(key, value) for key, value in schema.items() if key != "title"}
    required = schema.get("required", ())
    for key, value in relaxed.get("properties", {}).items():
        if key not in required:
            relaxed["properties"][key] = _nullable(value)
    if isinstance(relaxed.get("additionalProperties"), dict):
        relaxed["additionalProperties"] = _nullable(relaxed["additionalProperties"])
    kinds = relaxed.get("type", ())
    kinds = {kinds} if isinstance(kinds, str) else set(kinds)
    if "string" in kinds and {"pattern", "enum", "const"} & relaxed.keys():
        return _or(relaxed, _ref("text"))
    if kinds & {"integer", "number", "boolean"} and "string" not in kinds:
        return _or(relaxed, _ref("variable"))
    return relaxed


def _relaxed_part(key: str, value: Any) -> Any:
    if key in ("properties", "$defs"):
        return {name: _relaxed(inner) for name, inner in value.items()}
    if key in ("anyOf", "oneOf", "allOf", "prefixItems"):
        return [_relaxed(inner) for inner in value]
    if key in ("items", "additionalProperties") and isinstance(value, dict):
        return _relaxed(value)
    return value


def _or(schema: Schema, other: Schema) -> Schema:
    """Return a schema for a choice of two. Descriptions stay at the top for editors."""
    shown: Schema = {
        key: schema[key] for key in ("description", "default", "examples") if key in schema
    }
    inner = {key: value for key, value in schema.items() if key not in shown}
    choices = inner["anyOf"] if inner.keys() == {"anyOf"} else [inner]
    return {**shown, "anyOf": [*choices, other]}


def _nullable(schema: Schema) -> Schema:
    return schema if _NULL in schema.get("anyOf", ()) else _or(schema, _NULL)


def _open(values: Schema) -> Schema:
    return {"type": "object", "additionalProperties": values}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/$defs/{name}"}
