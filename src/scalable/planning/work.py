"""The calls that a plan is made for: how many of each task, and how long each takes. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from scalable.planning.knowledge import Knowledge
from scalable.spec import DeploymentSpec, Forecast, TaskSpec

#: Seconds that a call is taken to run where nothing is known.
GUESSED_DURATION_S = 10.0
#: Calls that are taken to come for each worker that the bounds allow, where nothing is known.
GUESSED_CALLS = 10

CallSource = Literal["manifest", "history", "guess"]


@dataclass(frozen=True)
class Calls:
    """The calls of one task.

    Attributes
    ----------
    task, tag
        Its name and its pool.
    count
        How many calls.
    forecast
        What one of them takes.
    after
        Tasks that must have ended before.
    counted
        Where the count comes from.
    """

    task: str
    tag: str
    count: int
    forecast: Forecast
    after: tuple[str, ...] = ()
    counted: CallSource = "manifest"

    @property
    def guessed(self) -> bool:
        """Whether the count or the running time rests on nothing."""
        return "guess" in (self.counted, self.forecast.source)


def expected_calls(
    spec: DeploymentSpec, knowledge: Knowledge, most: Mapping[str, int | None]
) -> list[Calls]:
    """What the run is expected to do, in the order of the manifest.

    Where there is no task at all, neither in the manifest nor in earlier runs, each component is
    taken to run calls of its own name; otherwise one that no task names is taken to be idle.

    Parameters
    ----------
    spec
        The request.
    knowledge
        What is known beside it.
    most
        Tag -> most workers, or None; an unknown number of calls is guessed by it.
    """
    return [
        _calls(task, spec, knowledge, most.get(task.component)) for task in _tasks(spec, knowledge)
    ]


def _tasks(spec: DeploymentSpec, knowledge: Knowledge) -> Iterator[TaskSpec]:
    yield from spec.tasks.values()
    named = {task.component for task in spec.tasks.values()}
    for task in knowledge.unlisted:
        if task.component not in named:
            yield task
    if not spec.tasks and not knowledge.unlisted:
        yield from (TaskSpec(tag, tag) for tag in spec.components)


def _calls(task: TaskSpec, spec: DeploymentSpec, knowledge: Knowledge, most: int | None) -> Calls:
    counted: CallSource = "manifest"
    count = task.count
    if count is None and task.name in knowledge.calls:
        count, counted = knowledge.calls[task.name], "history"
    if count is None:
        count, counted = GUESSED_CALLS * (most or 1) * slots_of(spec, task.component), "guess"
    forecast = knowledge.forecasts.get(task.name)
    if forecast is None and task.duration_s is not None:
        forecast = Forecast.exactly(task.duration_s)
    if forecast is None:
        forecast = Forecast(*(GUESSED_DURATION_S,) * 4)
    return Calls(task.name, task.component, count, forecast, task.after, counted)


def slots_of(spec: DeploymentSpec, tag: str) -> int:
    """Calls that one worker of a tag runs at once."""
    return int(spec.options.get("threads_per_worker") or spec.components[tag].slots)
