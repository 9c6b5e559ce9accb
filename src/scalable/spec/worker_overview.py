"""Overview of one worker of a cluster."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

#: States of workers: it takes calls, it takes none because it has little memory left, it is being
#: emptied before it ends.
WORKER_STATES = ("running", "paused", "leaving")


@dataclass(frozen=True)
class WorkerOverview:
    """One connected worker at one moment.

    Attributes
    ----------
    name, tag, address
        Name of the worker, tag of its pool (None for a worker without one), and its address.
    state
        One of :data:`WORKER_STATES`.
    running, assigned
        Calls that run, and calls that were sent to the worker and have not begun.
    used_slots, slots
        Slots that the running calls take, and slots of the worker.
    memory, memory_limit
        Memory that the worker reports, and its limit, in bytes; a limit of 0 is none.
    tasks
        Names of the tasks that run, at most three.
    """

    name: str
    tag: str | None = None
    address: str = ""
    state: str = "running"
    running: int = 0
    assigned: int = 0
    used_slots: int = 0
    slots: int = 0
    memory: int = 0
    memory_limit: int = 0
    tasks: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the attributes as plain JSON values."""
        return {**vars(self), "tasks": list(self.tasks)}  # asdict() takes ten times as long

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Return the worker that :meth:`to_dict` wrote; unknown keys are left out."""
        known = {f.name for f in dataclasses.fields(cls)}
        values = {key: value for key, value in data.items() if key in known}
        return cls(**{**values, "tasks": tuple(values.get("tasks", ()))})
