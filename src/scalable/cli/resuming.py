"""Resumed runs: choice of the run, and outcomes of its tasks in the resuming run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalable import settings
from scalable.cache.run_calls import Ended, RunCall, causes
from scalable.cache.run_results import RESULTS, results_of
from scalable.errors import RunError
from scalable.model import DeploymentSpec
from scalable.model.cache_outcomes import CacheTotals
from scalable.model.cache_settings import CacheSettings
from scalable.runs.finding import LATEST, find_run, list_runs
from scalable.runs.reading import read_status
from scalable.runs.summarizing import totals_of
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


def calls_of(run: Path) -> list[RunCall]:
    """Return a run's tasks as logged for resuming. The list is empty without ``keep_results``."""
    return list(results_of(str(run)).log.calls())


def nothing_kept(run: Path) -> str | None:
    """Return a sentence if the run has no stored results, otherwise None."""
    if any(call.end in (Ended.KEPT, Ended.ANSWERED) for call in calls_of(run)):
        return None
    return (
        f"no results of {run.name} were kept: all tasks run, except those of tasks with "
        "`cache: true`; write `keep_results: true` in `project:` of the manifest to keep the "
        "results of later runs"
    )


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
    #: None for runs without ``keep_results``, which do not record it.
    ran: int | None
    #: Durations in the resumed run of the tasks whose results came from it.
    saved_s: float
    #: Number of tasks by the reason why they ran.
    causes: dict[str, int]

    @classmethod
    def of(
        cls, earlier: Path, runs: Iterable[Path], remembered: CacheTotals, *, keeps: bool
    ) -> Resumed:
        """Compare the tasks of ``runs`` with those of the resumed run."""
        calls = [call for run in runs for call in calls_of(run)]
        answered = [call for call in calls if call.end is Ended.ANSWERED]
        why = Counter({cause.value: n for cause, n in causes(calls_of(earlier), calls).items()})
        why["not cached"] = remembered.missed  # tasks with `cache: true`
        return cls(
            earlier.name,
            len(answered),
            sum(not call.code for call in answered),
            remembered.found,
            why.total() if keeps else None,
            sum(call.cost_s for call in answered),
            {cause: number for cause, number in why.most_common() if number},
        )

    def __str__(self) -> str:
        changed = f" ({self.despite_code} despite changed code)" * bool(self.despite_code)
        parts = [f"{counted(self.answered, 'task')} reused from {self.run}{changed}"]
        if self.remembered:
            parts.append(counted(self.remembered, "cache hit"))
        if self.ran is not None:
            why = ", ".join(f"{number} {cause}" for cause, number in self.causes.items())
            parts.append(f"{self.ran} ran" + (f" ({why})" if why else ""))
        return ", ".join(parts) + "\n"


def cached_calls(rows: Iterable[Mapping[str, Any]], spec: DeploymentSpec) -> CacheTotals:
    """Return the totals of the tasks with ``cache: true``."""
    # Rows of remembered.jsonl include the tasks whose results came from the resumed run.
    tasks = CacheSettings.of(spec).tasks
    return totals_of(row for row in rows if str(row.get("task_name")) in tasks)


def unkept(runs: Sequence[Path]) -> list[str]:
    """Return a sentence for each function with results that could not be stored in these runs."""
    found: dict[str, list[str]] = {}
    for call in (call for run in runs for call in calls_of(run)):
        if call.end is Ended.UNKEPT:
            found.setdefault(call.function, []).append(call.reason)
    return [
        f"results of {function} are not kept ({counted(len(reasons), 'task')}): {reasons[0]}"
        for function, reasons in found.items()
    ]
