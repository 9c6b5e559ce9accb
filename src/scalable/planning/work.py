"""Number and duration of the tasks in a plan. Does no I/O."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from scalable.model import DeploymentSpec, Forecast, TaskSpec
from scalable.planning.knowledge import Knowledge

#: Assumed duration of a task in seconds if nothing is known.
GUESSED_DURATION_S = 10.0
#: Assumed number of tasks for each allowed slot if nothing is known.
GUESSED_CALLS = 10

CallSource = Literal["manifest", "history", "guess"]


@dataclass(frozen=True)
class ExpectedTasks:
    """Expected tasks of one name."""

    #: Name of the tasks.
    task: str
    tag: str
    count: int
    #: Forecast for one task.
    forecast: Forecast
    #: Names of the tasks that must finish first.
    after: tuple[str, ...] = ()
    #: Source of ``count``.
    counted: CallSource = "manifest"

    @property
    def guessed(self) -> bool:
        """True if the count or the duration is a guess."""
        return "guess" in (self.counted, self.forecast.source)

    @property
    def measured(self) -> bool:
        """True if the duration was measured on the target."""
        return self.forecast.source == "history" and not self.forecast.elsewhere


def expected_calls(
    spec: DeploymentSpec, knowledge: Knowledge, most: Mapping[str, int | None]
) -> list[ExpectedTasks]:
    """Return the expected tasks of a run, in the order of the manifest.
    If neither the manifest nor an earlier run has tasks, each component is expected to run tasks of
    its own name. Otherwise a component without tasks is idle. Guessed counts are multiples of
    ``most``, the tags' maximum numbers of workers.
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


def _calls(
    task: TaskSpec, spec: DeploymentSpec, knowledge: Knowledge, most: int | None
) -> ExpectedTasks:
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
    return ExpectedTasks(task.name, task.component, count, forecast, task.after, counted)


def slots_of(spec: DeploymentSpec, tag: str) -> int:
    """Return the number of slots of one worker of a tag."""
    return int(spec.options.get("threads_per_worker") or spec.components[tag].slots)
