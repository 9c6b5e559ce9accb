"""What the parts of a manifest may hold; descriptions appear in the JSON Schema and in hints."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from scalable.manifest.fields import (
    ComponentRuntime,
    Duration,
    Environment,
    Memory,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Record,
    Text,
    TextMap,
)

SECTIONS: dict[str, str] = {
    "version": "Version of the format: 1.",
    "project": "The project.",
    "targets": "Named places to run, each a provider with its options.",
    "components": "Named resource profiles; the name is the tag that calls are routed by.",
    "tasks": "Named kinds of calls, each bound to a component.",
    "overlays": "Named partial manifests; the one that a target names is merged into the rest.",
    "managers": "Worker managers that feed one cluster together: a list of targets with limits.",
}
REQUIRED_SECTIONS = ("version", "project", "targets", "components")
OVERLAY_SECTIONS = ("project", "targets", "components", "tasks", "managers")


class Bounds(Record):
    """Smallest and largest number of workers."""

    minimum: NonNegativeInt = Field(default=0, description="Fewest workers.")
    maximum: NonNegativeInt | None = Field(default=None, description="Most workers.")

    @model_validator(mode="after")
    def _in_order(self) -> Bounds:
        if self.maximum is not None and self.minimum > self.maximum:
            raise PydanticCustomError(
                "bounds",
                "minimum {minimum} is more than maximum {maximum}",
                {"minimum": self.minimum, "maximum": self.maximum},
            )
        return self


def _bounds_of_count(value: Any) -> Any:
    if type(value) is int and value >= 0:
        return {"minimum": value, "maximum": value}
    if isinstance(value, dict):
        return value
    raise PydanticCustomError(
        "workers", "must be a number of workers, or a map of minimum and maximum"
    )


def _list_or_map(value: Any) -> Any:
    items = value.values() if isinstance(value, dict) else value
    if not isinstance(value, dict | list) or not all(isinstance(v, str) and v for v in items):
        raise PydanticCustomError("outputs", "must be a list of names, or a map of name to path")
    return value


Workers = Annotated[
    Bounds, BeforeValidator(_bounds_of_count, json_schema_input_type=NonNegativeInt | Bounds)
]
Outputs = Annotated[
    Any,
    BeforeValidator(_list_or_map),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "array", "items": {"type": "string", "minLength": 1}},
                {"type": "object", "additionalProperties": {"type": "string", "minLength": 1}},
            ]
        }
    ),
]


class Project(Record):
    """The project."""

    name: Text = Field(description="Name of the project; part of run and cluster names.")
    default_storage: Text | None = Field(
        default=None, description="Where results go: a directory or a URL."
    )
    local_cache: Text | None = Field(
        default=None, description="Directory for results that may be used again."
    )


class Component(Record):
    """A resource profile; every key may be left out."""

    image: Text | None = Field(default=None, description="Container image of the workers.")
    runtime: ComponentRuntime | None = Field(
        default=None,
        description="Container runtime, where it is not the target's; or host, to mount the "
        "machine's Python into the image.",
    )
    cpus: PositiveFloat = Field(default=1, description="Cores that one worker reserves.")
    memory: Memory | None = Field(
        default=None, description="Memory that one worker reserves, such as 20G."
    )
    gpus: NonNegativeInt = Field(default=0, description="Devices that one worker reserves.")
    slots: PositiveInt = Field(default=1, description="Calls that a worker runs at once.")
    mounts: TextMap = Field(default={}, description="Path on the host: path in the container.")
    env: Environment = Field(default={}, description="Environment of the workers.")
    preload_script: Text | None = Field(
        default=None, description="Script that runs before a worker starts."
    )
    workers: Workers | None = Field(
        default=None, description="Number of workers, or a map of minimum and maximum."
    )
    tags: tuple[Text, ...] = Field(
        default=(), description="Labels for grouping in reports; calls are not routed by them."
    )


class Task(Record):
    """A named kind of call, with what is expected of it."""

    component: Text = Field(description="The component whose workers run it.")
    cache: bool = Field(default=False, description="Whether results may be kept between runs.")
    outputs: Outputs = Field(
        default=(), description="What it produces: a list of names, or a map of name to path."
    )
    count: PositiveInt | None = Field(default=None, description="How many calls are expected.")
    duration: Duration | None = Field(
        default=None, description="Expected time of one call, such as 90s or 1h30m."
    )
    memory: Memory | None = Field(
        default=None, description="Expected peak memory of one call, such as 2G."
    )
    after: tuple[Text, ...] = Field(
        default=(), description="Tasks that must have ended before this one starts."
    )


class Target(Record):
    """What every target may hold, whatever its provider."""

    provider: Text = Field(description="The provider: the kind of place.")
    overlay: Text | None = Field(
        default=None, description="The overlay that is merged in for this target."
    )
    adaptive: Bounds | None = Field(
        default=None, description="Let the number of workers follow the work, in all pools."
    )
    idle_timeout: Duration | None = Field(
        default=None, description="End the cluster when it had no work for so long."
    )
    time_to_live: Duration | None = Field(
        default=None, description="End the cluster when it is so old."
    )
    manager_grace: Duration | None = Field(
        default=None,
        description="Let idle workers go whose manager has been silent for so long: 30min.",
    )
    spill_after: Duration | None = Field(
        default=None, description="Pass on to the next manager what was not delivered for so long."
    )
    price_per_core_hour: NonNegativeFloat | None = Field(
        default=None, description="What one core costs for one hour."
    )


class Manager(Record):
    """A worker manager that feeds the cluster."""

    target: Text = Field(description="The target that it provisions on.")
    priority: int = Field(default=0, strict=True, description="Lower numbers are filled first.")
    limits: dict[str, NonNegativeInt] = Field(
        default={}, description="Component: most workers that this manager may provision."
    )
