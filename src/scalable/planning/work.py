"""Number and length of the calls for which a plan is made. No I/O."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from scalable.planning.knowledge import Knowledge
from scalable.spec import DeploymentSpec, Forecast, TaskSpec

#: Assumed running time of a call in seconds if nothing is known.
GUESSED_DURATION_S = 10.0
#: Assumed number of calls for each allowed worker if nothing is known.
GUESSED_CALLS = 10

CallSource = Literal["manifest", "history", "guess"]


@dataclass(frozen=True)
class Calls:
    """The calls of one task.

    Attributes
    ----------
    task, tag
        Name and pool of the task.
    count
        Number of calls.
    forecast
        Forecast of one call.
    after
        Names of the tasks that must end first.
    counted
        Source of ``count``: manifest, history or guess.
    """

    task: str
    tag: str
    count: int
    forecast: Forecast
    after: tuple[str, ...] = ()
    counted: CallSource = "manifest"

    @property
    def guessed(self) -> bool:
        """Whether the count or the running time is a guess."""
        return "guess" in (self.counted, self.forecast.source)

    @property
    def measured(self) -> bool:
        """Whether the running time was measured on the target."""
        return self.forecast.source == "history" and not self.forecast.elsewhere


def expected_calls(
    spec: DeploymentSpec, knowledge: Knowledge, most: Mapping[str, int | None]
) -> list[Calls]:
    """Return the expected calls of a run, in the order of the manifest.

    If neither the manifest nor an earlier run has any task, each component is expected to run calls
    of a task with the component's name. Otherwise a component that no task names is expected to be
    idle.

    Parameters
    ----------
    spec
        The deployment.
    knowledge
        Measurements of earlier runs.
    most
        Tag -> maximum number of workers (None if unlimited); guessed counts are multiples of it.
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
    """Return the number of calls that one worker of a tag runs at once."""
    return int(spec.options.get("threads_per_worker") or spec.components[tag].slots)
