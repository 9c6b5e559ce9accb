"""Models of a manifest's parts. Their descriptions appear in the JSON Schema and in hints."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainSerializer,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticCustomError

from scalable.manifest.fields import (
    Argument,
    ComponentRuntime,
    Duration,
    Environment,
    ErrorName,
    Image,
    Label,
    ManagerPolicy,
    Memory,
    MemoryFactor,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ProjectName,
    Record,
    ResultsUrl,
    StorageUrl,
    Text,
    TextMap,
    allowed,
)
from scalable.model import names
from scalable.model.components import MOST_WORKERS

SECTIONS: dict[str, str] = {
    "version": "Version of the format: 1.",
    "project": "The project.",
    "targets": "Where to run, by name: each a provider with its options.",
    "components": "Named resource profiles; the name is the tag that routes tasks.",
    "tasks": "Named task types, each with the component that runs it.",
    "overlays": "Named partial manifests; a target's overlay is merged into the manifest.",
    "managers": "Worker managers that serve one cluster: a list of targets, or a policy.",
}
REQUIRED_SECTIONS = ("version", "project", "targets", "components")
OVERLAY_SECTIONS = ("project", "targets", "components", "tasks", "managers")


WorkerCount = Annotated[NonNegativeInt, Field(le=MOST_WORKERS)]


class Bounds(Record):
    """Minimum and maximum number of workers."""

    minimum: WorkerCount = Field(default=0, description="Minimum number of workers.")
    maximum: WorkerCount | None = Field(default=None, description="Maximum number of workers.")

    @model_validator(mode="after")
    def _in_order(self) -> Bounds:
        if self.maximum is not None and self.minimum > self.maximum:
            message = f"minimum {self.minimum} exceeds maximum {self.maximum}"
            raise PydanticCustomError("bounds", message)
        return self


def _bounds_of_count(value: Any) -> Any:
    if type(value) is int and value >= 0:
        return {"minimum": value, "maximum": value}
    if isinstance(value, dict):
        return value
    raise PydanticCustomError("workers", "must be a number, or a map of minimum and maximum")


def _list_or_map(value: Any) -> Any:
    items = value.values() if isinstance(value, dict) else value
    if not isinstance(value, dict | list) or not all(isinstance(v, str) and v for v in items):
        raise PydanticCustomError("outputs", "must be a list of names, or a map of name to path")
    return value


Workers = Annotated[
    Bounds, BeforeValidator(_bounds_of_count, json_schema_input_type=WorkerCount | Bounds)
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


class Retries(Record):
    """Retries of failed tasks."""

    count: NonNegativeInt = Field(description="Maximum number of retries of one task.")
    backoff: Duration | None = Field(
        default=None, description="Time before the first retry. It doubles before each later retry."
    )
    on: tuple[ErrorName, ...] = Field(
        default=(), description="Exceptions that are retried, such as OSError. Default: all."
    )


def _retries_of_count(value: Any) -> Any:
    if type(value) is int and value >= 0:
        return {"count": value}
    if isinstance(value, dict):
        # The result of a validator is not read as JSON, where a list is accepted for a tuple.
        return {k: tuple(v) if isinstance(v, list) else v for k, v in value.items()}
    raise PydanticCustomError(
        "retries", "must be a number of retries, or a map of count, backoff and on"
    )


FurtherTries = Annotated[
    Retries,
    BeforeValidator(_retries_of_count, json_schema_input_type=NonNegativeInt | Retries),
]


class KeptResults(Record):
    """Bounds of the results that are kept for resuming a run."""

    size: Memory = Field(default="20G", description="Maximum size of the results of one run.")
    age: Duration = Field(default="30d", description="Time for which results are kept after a run.")


def _bounds_of_kept(value: Any) -> Any:
    if isinstance(value, bool):
        return {} if value else None
    if isinstance(value, dict):
        return value
    raise PydanticCustomError("keep_results", "must be true, false, or a map of size and age")


def _kept_as_written(bounds: KeptResults | None) -> Any:
    return False if bounds is None else bounds.model_dump(exclude_unset=True) or True


KeepResults = Annotated[
    KeptResults | None,
    BeforeValidator(_bounds_of_kept, json_schema_input_type=bool | KeptResults),
    PlainSerializer(_kept_as_written),
]


class Project(Record):
    """The project."""

    name: ProjectName = Field(description="Name of the project, in the names of runs and clusters.")
    default_storage: StorageUrl | None = Field(
        default=None,
        description="Storage for results: a directory, or a file:, s3://, gs:// or memory:// URL.",
    )
    local_cache: ResultsUrl | None = Field(
        default=None,
        description="Directory or URL of the cache. Default: in default_storage if you set it, "
        "else your own cache directory.",
    )
    cache_limit: Memory = Field(
        default="20G",
        description="Maximum size of the cache. Above it, the least recently used results are "
        "removed.",
    )
    keep_results: KeepResults = Field(
        default=None,
        description="Keep the result of each task of a run, so that you can resume the run.",
    )


def _python_module(path: str) -> str:
    if not path.endswith(".py"):
        raise PydanticCustomError(
            "preload_script",
            "must be a Python module (a .py file); write shell commands in setup",
        )
    return path


class SecretSource(Record):
    """Source of a secret value. Exactly one of the two keys must be given."""

    env: Text | None = Field(default=None, description="Environment variable with the value.")
    file: Text | None = Field(
        default=None, description="File with the value. A line break at its end is ignored."
    )

    @model_validator(mode="after")
    def _one_source(self) -> SecretSource:
        if (self.env is None) == (self.file is None):
            raise PydanticCustomError("secrets", "must name one source: env or file")
        return self


def _sources_of_names(value: Any) -> Any:
    if isinstance(value, list):
        return {name: {"env": name} for name in value if isinstance(name, str)}
    return value


Secrets = Annotated[
    dict[Annotated[str, AfterValidator(allowed(names.VARIABLE))], SecretSource],
    BeforeValidator(_sources_of_names, json_schema_input_type=list[str] | dict[str, SecretSource]),
]


class Component(Record):
    """Resource profile. Every key is optional."""

    image: Image | None = Field(default=None, description="Container image of the workers.")
    runtime: ComponentRuntime | None = Field(
        default=None,
        description="Container runtime. Default: the target's. With host, the machine's Python is "
        "mounted into the image.",
    )
    cpus: PositiveFloat = Field(default=1, description="Cores that one worker reserves.")
    memory: Memory | None = Field(default=None, description="Memory of one worker, such as 20G.")
    gpus: NonNegativeInt = Field(default=0, description="GPUs that one worker reserves.")
    slots: PositiveInt = Field(default=1, description="Number of tasks that a worker runs at once.")
    mounts: TextMap = Field(default={}, description="Paths in the container, by path on the host.")
    env: Environment = Field(default={}, description="Environment variables of the workers.")
    secrets: Secrets = Field(
        default={},
        description="Secret environment variables, which are not in records, scripts or logs. A "
        "map from name to {env: NAME} or {file: PATH}, or a list of your environment variables.",
    )
    preload_script: Annotated[Text, AfterValidator(_python_module)] | None = Field(
        default=None, description="Python module that a worker runs before its first task."
    )
    setup: tuple[Text, ...] = Field(
        default=(),
        description="Shell commands to run before a worker starts, such as module load gcc. If one "
        "fails, the worker does not start.",
    )
    python: Argument | None = Field(
        default=None,
        description="Python interpreter of the workers. Default: yours, or that of the image.",
    )
    workers: Workers | None = Field(
        default=None, description="Number of workers, or a map of minimum and maximum."
    )
    tags: tuple[Label, ...] = Field(
        default=(), description="Labels that group components in reports. They do not route tasks."
    )


class Task(Record):
    """Named kind of task, with estimates of its number, time and memory."""

    component: Text = Field(description="Component whose workers run the tasks.")
    cache: bool = Field(
        default=False,
        description="Cache results. An equal task of a later run is then a cache hit.",
    )
    retries: FurtherTries | None = Field(
        default=None,
        description="Retries of a failed task: a number, or a map of count, backoff and on.",
    )
    memory_on_retry: MemoryFactor | None = Field(
        default=None,
        description="If a task runs out of memory, retry it in the smallest pool with at least "
        "this multiple of its memory, such as 1.5x.",
    )
    outputs: Outputs = Field(
        default=(), description="Outputs: a list of names, or a map of name to path."
    )
    count: PositiveInt | None = Field(default=None, description="Expected number of tasks.")
    duration: Duration | None = Field(
        default=None, description="Expected time of one task, such as 90s or 1h30m."
    )
    memory: Memory | None = Field(default=None, description="Peak memory of one task, such as 2G.")
    after: tuple[Text, ...] = Field(
        default=(), description="For plans only: tasks whose results this one uses."
    )


class Target(Record):
    """Options that every target may have, for all providers."""

    provider: Text = Field(description="Name of the provider.")
    overlay: Text | None = Field(
        default=None, description="Overlay that is merged into the manifest for this target."
    )
    adaptive: Bounds | None = Field(
        default=None,
        description="Minimum and maximum total number of workers, which follows the load.",
    )
    idle_timeout: Duration | None = Field(
        default=None, description="Time without work after which the cluster stops, such as 30min."
    )
    time_to_live: Duration | None = Field(
        default=None, description="Age at which the cluster stops, such as 8h."
    )
    manager_grace: Duration | None = Field(
        default=None,
        description="If a manager sends no heartbeat for this time, its idle workers stop.",
    )
    spill_after: Duration | None = Field(
        default=None,
        description="Time to wait for workers before requesting them from the next manager.",
    )
    price_per_core_hour: NonNegativeFloat | None = Field(
        default=None, description="Price of one core for one hour."
    )
    prices: dict[Text, NonNegativeFloat] = Field(
        default={},
        description="Price of one worker or machine for one hour, by component or machine type. "
        "Overrides price_per_core_hour and the provider's prices.",
    )
    budget: PositiveFloat | None = Field(
        default=None,
        description="Amount that a cluster may spend. Pools stop growing when 80 % of it is spent.",
    )
    keep_results: KeepResults = Field(
        default=None, description="Overrides `keep_results` of the project for this target."
    )
    setup: tuple[Text, ...] = Field(
        default=(), description="Commands that run before `setup` of each component."
    )
    secrets: Secrets = Field(default={}, description="Secrets for all components.")
    python: Argument | None = Field(
        default=None, description="Python interpreter of components that do not set `python`."
    )


class Manager(Record):
    """A worker manager that starts workers for the cluster."""

    target: Text = Field(description="Target where the manager starts workers.")
    priority: int = Field(
        default=0, strict=True, description="Managers with lower numbers get workers first."
    )
    limits: dict[str, NonNegativeInt] = Field(
        default={}, description="Maximum number of workers that this manager starts, by component."
    )
    scheduler_address: Text | None = Field(
        default=None,
        description="HOST:PORT at which this manager's workers reach the scheduler, if it differs "
        "from the address that the manager itself uses.",
    )


class Managers(Record):
    """Worker managers of one cluster, and the policy that divides workers among them."""

    policy: ManagerPolicy = Field(
        default="waterfall",
        description="Order of the managers: waterfall (by priority) or cheapest (by price).",
    )
    places: tuple[Manager, ...] = Field(
        default=(), description="The managers. Default: one, on the target that you give to `up`."
    )
