"""Overview of one worker of a cluster."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

#: States of workers: takes tasks, takes none because memory is short, finishes its last tasks.
WORKER_STATES = ("running", "paused", "leaving")


@dataclass(frozen=True)
class WorkerOverview:
    """One connected worker at one moment."""

    name: str
    #: Tag of its pool; None for a worker without one.
    tag: str | None = None
    address: str = ""
    #: One of :data:`WORKER_STATES`.
    state: str = "running"
    #: Tasks that run, and assigned tasks that have not started.
    running: int = 0
    assigned: int = 0
    #: Slots of the running tasks.
    used_slots: int = 0
    slots: int = 0
    #: Bytes in use, and the limit in bytes; a limit of 0 is none.
    memory: int = 0
    memory_limit: int = 0
    #: Names of the running tasks, at most three.
    tasks: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self), "tasks": list(self.tasks)}  # asdict() takes ten times as long

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Decode the result of :meth:`to_dict`, ignoring unknown keys."""
        known = {f.name for f in dataclasses.fields(cls)}
        values = {key: value for key, value in data.items() if key in known}
        return cls(**{**values, "tasks": tuple(values.get("tasks", ()))})
