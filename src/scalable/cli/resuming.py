"""Resumed runs: choice of the run, and outcomes of its tasks in the resuming run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalable import settings
from scalable.cache.calls import NOT_COMPARED
from scalable.cache.differences import group_of
from scalable.cache.resume import NOT_ASKED, NOT_KEPT, RESULTS, results_of
from scalable.errors import RunError
from scalable.model.cache_outcomes import CacheOutcome
from scalable.runs.calls import outcomes_in
from scalable.runs.overview import LATEST, find_run, list_runs
from scalable.runs.reading import read_status
from scalable.units import counted


def resumed_run(asked: str, project: str, target: str | None) -> Path:
    """Return the directory of the run to resume, given an id prefix or :data:`LATEST`.
    Raises RunError if there is no such run of the project and target, or it is running.
    """
    where = settings.runs_dir()
    if asked != LATEST:
        path = find_run(where, asked)
        run, state = read_status(path)
        if run.get("project") != project:
            raise RunError(
                f"{path.name} is a run of project {run.get('project')!r}, not {project!r}"
            )
    else:
        runs = ((path, *read_status(path)) for path in list_runs(where))
        found = [
            (path, state)
            for path, run, state in runs
            if run.get("project") == project and target in (None, run.get("target"))
        ]
        if not found:
            on = "" if target is None else f" on target {target!r}"
            raise RunError(
                f"{where.absolute()} contains no run of project {project!r}{on} to resume",
                hint="run it without --resume first",
            )
        # The last run that has stored results, since runs without ``keep_results`` have none.
        path, state = next((one for one in found if (one[0] / RESULTS).is_dir()), found[0])
    if state == "running":
        raise RunError(
            f"{path.name} is still running", hint="wait until it has finished, or name another run"
        )
    return path.absolute()


def nothing_kept(run: Path) -> str | None:
    """Return a sentence if the run has no stored results, otherwise None."""
    if next(results_of(str(run)).store.stored(), None) is not None:
        return None
    return (
        f"no results of {run.name} were kept: all tasks run, except those of tasks with "
        "`cache: true`; write `keep_results: true` in `project:` of the manifest to keep the "
        "results of later runs"
    )


#: Groups of key parts that belong to the place where a task runs, not to its code.
_ENVIRONMENT = frozenset({"environment", "image", "package", "python", "key"})
_INPUTS = frozenset({"argument"})
_WITHOUT_KEY = "without a key"


@dataclass(frozen=True)
class Resumed:
    """Outcomes of tasks in runs that resumed an earlier run."""

    #: Id of the resumed run.
    run: str
    #: Number of tasks whose results came from the resumed run.
    answered: int
    #: Number of those whose code has changed since.
    despite_code: int
    #: Number of cache hits.
    remembered: int
    #: None if no task was compared with the resumed run.
    ran: int | None
    #: Durations in the resumed run of the tasks whose results came from it.
    saved_s: float
    #: Number of tasks by the reason why they ran.
    causes: dict[str, int]
    #: False if the new run was killed: its last tasks are not counted.
    is_complete: bool = True

    @classmethod
    def of(
        cls, earlier: Path, rows: Iterable[Mapping[str, Any]], *, is_complete: bool = True
    ) -> Resumed:
        """Count the outcomes in rows of ``remembered.jsonl`` of runs that resumed ``earlier``."""
        outcomes = [outcome for _, _, outcome in outcomes_in(rows)]
        compared = [one for one in outcomes if one.resumed]
        answered = [one for one in compared if one.is_hit]
        why: Counter[str] = Counter()
        for one in outcomes:
            if not one.is_hit:
                why[_cause(one)] += one.count
        return cls(
            earlier.name,
            sum(one.count for one in answered),
            sum(one.count for one in answered if one.reason),
            sum(one.count for one in outcomes if one.is_hit and not one.resumed),
            why.total() if compared else None,
            sum(one.saved_s for one in answered),
            dict(why.most_common()),
            is_complete,
        )

    def __str__(self) -> str:
        changed = f" ({self.despite_code} despite changed code)" * bool(self.despite_code)
        parts = [f"{counted(self.answered, 'task')} reused from {self.run}{changed}"]
        if self.remembered:
            parts.append(counted(self.remembered, "cache hit"))
        if self.ran is not None:
            why = ", ".join(f"{number} {cause}" for cause, number in self.causes.items())
            parts.append(f"{self.ran} ran" + (f" ({why})" if why else ""))
        killed = "" if self.is_complete else "; the run was killed: its last tasks are not counted"
        return f"{', '.join(parts)}{killed}\n"


def _cause(missed: CacheOutcome) -> str:
    """Return in a few words why a task ran in a run that resumes another."""
    if missed.reason == NOT_KEPT + NOT_ASKED:
        return f"with {NOT_ASKED}"
    if missed.reason.startswith(NOT_KEPT):
        return _WITHOUT_KEY
    if not missed.resumed:
        return "not cached"
    if missed.reason == NOT_COMPARED:
        return "not compared"
    groups = {group_of(part) for part in missed.changed}
    if groups - _ENVIRONMENT - _INPUTS:
        return "changed code"
    return "changed environment" if groups & _ENVIRONMENT else "without a kept result"


def unkept(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return a sentence for each task name with results that could not be kept."""
    found: dict[str, list[CacheOutcome]] = {}
    for task, _, outcome in outcomes_in(rows):
        if outcome.reason.startswith(NOT_KEPT) and _cause(outcome) == _WITHOUT_KEY:
            found.setdefault(task, []).append(outcome)
    return [
        f"results of {task} are {each[0].reason} ({counted(sum(o.count for o in each), 'task')})"
        for task, each in found.items()
    ]
