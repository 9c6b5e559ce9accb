"""Calls of an earlier run, compared with the code and the environment of now."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Compared:
    """Calls of a run whose results exist, by task.

    Attributes
    ----------
    same
        Task -> number of calls whose code and environment are the same now.
    changed
        Task -> names of the functions whose code or environment is another.
    incomparable
        Names of the functions whose code cannot be known without running the workflow.
    """

    same: Counter[str] = field(default_factory=Counter)
    changed: dict[str, set[str]] = field(default_factory=dict)
    incomparable: set[str] = field(default_factory=set)

    def differs(self, task: str, function: str) -> None:
        """Note a call of a task whose function is another now."""
        self.changed.setdefault(task, set()).add(function)
