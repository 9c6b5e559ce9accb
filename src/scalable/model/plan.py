"""Plans: workers for each tag, predicted time and cost, and the reasons."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from scalable.model.codec import Noun
from scalable.model.components import ResourceRequest
from scalable.model.prices import Rate


@dataclass(frozen=True)
class ScalePlan(Noun):
    """Desired worker counts by tag.

    A missing tag keeps its count. A count of 0 stops all workers.

    Attributes
    ----------
    workers_by_tag
        Numbers of workers by tag.
    resources_by_tag
        Resources of one worker by tag.
    """

    workers_by_tag: Mapping[str, int]
    resources_by_tag: Mapping[str, ResourceRequest] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the attributes as plain JSON values."""
        return {
            "workers_by_tag": dict(self.workers_by_tag),
            "resources_by_tag": {t: r.to_dict() for t, r in self.resources_by_tag.items()},
        }

    def __str__(self) -> str:
        shown = []
        for tag, count in self.workers_by_tag.items():
            resources = self.resources_by_tag.get(tag)
            shown.append(
                f"{tag!r}: " + (f"{resources!r}, " if resources else "") + f"count={count}"
            )
        return "{" + "; ".join(shown) + "}"


@dataclass(frozen=True)
class CostEstimate(Noun):
    """Cost of a plan according to its provider's prices.

    Attributes
    ----------
    total
        Cost of the whole run, or None if its duration is unknown.
    by_tag
        Parts of ``hourly`` for the workers of each tag.
    hourly
        Cost of one hour with all planned workers.
    currency
        Currency of the prices.
    source, as_of
        Source of the prices, and their date (ISO 8601) or None.
    always_by_name
        Parts of ``hourly`` by program, for the machines of the scheduler and of managers.
    rates
        Price and billing of the workers' machines by tag, if the provider reports them.
    always
        Price and billing of machines by program.
    notes
        Sentences about the prices, such as rounded-up sizes and costs that are not included.
    """

    total: float | None
    by_tag: Mapping[str, float]
    hourly: float
    currency: str = "USD"
    source: str = ""
    as_of: str | None = None
    always_by_name: Mapping[str, float] = field(default_factory=dict)
    rates: Mapping[str, Rate] = field(default_factory=dict)
    always: Mapping[str, Rate] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class FrontPoint(Noun):
    """One of the plans between the cheapest and the fastest."""

    #: Predicted duration of the run.
    time_s: float
    #: Predicted cost, in the unit of :class:`PredictedCost`.
    cost: float
    workers_by_tag: Mapping[str, int]
    #: 80 % quantiles of time and cost. None in plans of releases without them.
    time_q80_s: float | None = None
    cost_q80: float | None = None


@dataclass(frozen=True)
class PredictedCost(Noun):
    """The predicted cost of a run."""

    #: Cost if each pool exists only while it has work.
    expected: float
    #: Bounds of ``expected`` that hold with a probability of 80 %.
    interval: tuple[float, float]
    #: Cost if all workers stay until the end of the run.
    held: float
    #: ``expected`` if the target releases idle workers, else ``held``.
    billed: float
    #: 80 % bounds of ``billed``, including the range of spot prices.
    billed_interval: tuple[float, float]
    #: A currency, or ``worker-seconds`` if no price is known.
    unit: str = "worker-seconds"


@dataclass(frozen=True)
class TaskPrediction(Noun):
    """Tasks of one name, as assumed in a plan."""

    #: Pool of the tasks.
    tag: str
    #: Number of tasks.
    calls: int
    #: Source of ``calls``: manifest, history or guess.
    counted: str
    #: This and the next fields are as in :class:`scalable.model.Forecast`.
    mean_s: float
    q50_s: float
    q80_s: float
    q95_s: float
    memory: int | None
    samples: int
    source: str
    measured_on: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class MemoryAdvice(Noun):
    """Advice to change a memory reservation that differs much from the used memory."""

    tag: str
    #: Reserved bytes of one worker.
    reserved: int
    #: 95 % quantile of the tasks' memory in bytes.
    used: int
    advised: int
    #: Number of measured tasks.
    samples: int

    @property
    def written(self) -> str:
        """Advised amount in the manifest's notation, rounded up: ``740Mi``, ``2.5Gi``."""
        if self.advised < 2**30:
            return f"{math.ceil(self.advised / 2**20)}Mi"
        return f"{math.ceil(self.advised * 10 / 2**30) / 10:g}Gi"

    def to_dict(self) -> dict[str, Any]:
        return super().to_dict() | {"written": self.written}


#: Confidence below which it is called low, and from which on it is called good.
LOW_CONFIDENCE, GOOD_CONFIDENCE = 0.5, 0.8


def confidence_in_words(confidence: float) -> str:
    """Return low, fair or good for a confidence between 0 and 1."""
    if confidence < LOW_CONFIDENCE:
        return "low"
    return "good" if confidence >= GOOD_CONFIDENCE else "fair"


@dataclass(frozen=True)
class Plan(Noun):
    """Workers for a run, with predictions and reasons.

    Attributes
    ----------
    target_name, provider_name
        Target and provider.
    manifest_lock
        Digest of the resolved manifest (64 hexadecimal digits), independent of the order of keys,
        comments and formatting.
    scale_plan
        Worker counts and resources.
    task_to_component
        Tags by task name.
    cost_estimate
        Estimated cost, or None if no price is known.
    objective, policy
        Objective (minimize time, minimize cost, balance) and policy of scaling. Without an
        objective the worker counts come from the manifest.
    deadline_s, budget
        Time limit in seconds, and cost limit. Either may be None.
    predicted_time_s
        Predicted duration of the run in seconds, including the start of workers if known. None
        if the work is unknown and the plan has no objective.
    predicted_interval_s
        Bounds of the predicted time that hold with a probability of 80 %.
    predicted_cost
        Predicted cost, or None if ``predicted_time_s`` is None.
    confidence
        Probability that the run takes 0.8 to 1.25 times ``predicted_time_s``.
    binding
        Constraint that keeps the plan from being cheaper or faster. None without an objective.
    reasons
        Reasons for the plan, as sentences.
    front
        Choices from the cheapest to the fastest. Empty without an objective.
    tasks
        Assumptions about tasks by task name.
    memory_advice
        Advice on memory reservations.
    overhead
        Factor by which earlier runs took longer than their tasks. It is part of the predicted time.
    startup_s
        Part of the predicted time before the first task, or None if it is not included.
    """

    target_name: str
    provider_name: str
    manifest_lock: str
    scale_plan: ScalePlan
    task_to_component: Mapping[str, str] = field(default_factory=dict)
    cost_estimate: CostEstimate | None = None
    objective: str | None = None
    policy: str = "manual"
    deadline_s: float | None = None
    budget: float | None = None
    predicted_time_s: float | None = None
    predicted_interval_s: tuple[float, float] | None = None
    predicted_cost: PredictedCost | None = None
    confidence: float = 0.0
    binding: str | None = None
    reasons: tuple[str, ...] = ()
    front: tuple[FrontPoint, ...] = ()
    tasks: Mapping[str, TaskPrediction] = field(default_factory=dict)
    memory_advice: tuple[MemoryAdvice, ...] = ()
    overhead: float = 1.0
    startup_s: float | None = None


# Plan format --------------------------------------------------------------------------------------

#: Version of the JSON value in which ``scalable plan --format json`` prints a plan.
VERSION = 1

#: Numbers of a plan are less than this.
_MOST = 1e18

_T = TypeVar("_T")


class PlanFormatError(ValueError):
    """A JSON value is not a plan. The message names the key."""


def decode_plan(data: Any) -> Plan:
    """Return a plan from its JSON form, bare or versioned, or raise PlanFormatError."""
    if isinstance(data, Mapping) and "plan" in data:
        if data.get("version") != VERSION:
            raise PlanFormatError(
                f"version {data.get('version')!r} is not supported; this release reads {VERSION}"
            )
        data = data["plan"]
    plan = _object(Plan, data, "plan")
    for tag, count in plan.scale_plan.workers_by_tag.items():
        if count < 0:
            raise PlanFormatError(
                f"plan.scale_plan.workers_by_tag.{tag} is {count}, but must be 0 or more"
            )
    if not 0 <= plan.confidence <= 1:
        raise PlanFormatError(f"plan.confidence is {plan.confidence}, but must be 0 to 1")
    for name in ("deadline_s", "budget"):
        value = getattr(plan, name)
        if value is not None and value <= 0:
            raise PlanFormatError(f"plan.{name} is {value}, but must be more than 0")
    return plan


def _object(cls: type[_T], data: Any, path: str) -> _T:
    """Return a dataclass from a JSON object, checking each value's type."""
    if not isinstance(data, Mapping):
        raise _wrong(path, "an object", data)
    kinds, values = typing.get_type_hints(cls), {}
    for each in dataclasses.fields(cls):  # type: ignore[arg-type]
        if each.name in data:
            values[each.name] = _value(kinds[each.name], data[each.name], f"{path}.{each.name}")
        elif each.default is each.default_factory is dataclasses.MISSING:
            raise PlanFormatError(f"{path} has no {each.name!r}")
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
    return _plain_json(kind, data, path)


def _plain_json(kind: Any, data: Any, path: str) -> Any:
    if kind is float and type(data) in (int, float) and abs(data) < _MOST:  # not true for NaN
        return data
    if kind is not float and type(data) is kind:
        return data
    raise _wrong(path, {float: "a number", int: "a whole number"}.get(kind, "a string"), data)


def _wrong(path: str, expected: str, data: Any) -> PlanFormatError:
    shown = repr(data)
    return PlanFormatError(f"{path} is not {expected}: {shown[:37]}{'...' * (len(shown) > 40)}")


# Forecasts ----------------------------------------------------------------------------------------

#: Source of a forecast: earlier runs, the expectations of the manifest, or a guess.
ForecastSource = Literal["history", "manifest", "guess"]


@dataclass(frozen=True)
class Forecast:
    """Predicted time and memory of one kind of task."""

    #: Duration of one task: its mean and quantiles.
    mean_s: float
    q50_s: float
    q80_s: float
    q95_s: float
    #: 95 % quantile of the peak memory of one task in bytes, or None if unknown.
    memory: int | None = None
    #: Number of measured tasks behind the forecast.
    samples: int = 0
    source: ForecastSource = "guess"
    #: Sample of the measured durations.
    durations_s: Sequence[float] = ()
    #: Number of measured tasks by target.
    measured_on: Mapping[str, int] = field(default_factory=dict)
    #: True if all measured tasks ran on other targets.
    elsewhere: bool = False

    @classmethod
    def exactly(cls, duration_s: float, memory: int | None = None) -> Forecast:
        """Return a forecast of exactly these values, with the manifest as its source."""
        return cls(duration_s, duration_s, duration_s, duration_s, memory, source="manifest")
