"""The calls that a resumed run would answer, by task, with the code as it is now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalable.caching.errors import UnfollowedReferencesError, UnstableValueError
from scalable.caching.key import KeyMaker, KeyOptions, digest_of
from scalable.caching.packages import python_version
from scalable.caching.run_calls import Ended, RunCall
from scalable.caching.run_results import RunResults, results_of
from scalable.session.compared import Compared
from scalable.session.functions_now import functions_now
from scalable.session.remembered_again import RememberedAgain
from scalable.spec import DeploymentSpec, TaskSpec
from scalable.spec.remembering import Remembering
from scalable.telemetry.streams import StoredRows, stream_path
from scalable.units import counted


@dataclass(frozen=True)
class Answered:
    """The calls that a resumed run would answer.

    Attributes
    ----------
    calls
        Task -> number of calls.
    reasons
        Sentences about each task.
    """

    calls: Mapping[str, int]
    reasons: tuple[str, ...]


def answered_calls(run: Path, spec: DeploymentSpec, script: Path) -> Answered:
    """Return the calls that a run would answer if it were resumed now.

    These are calls whose result is kept or remembered, and whose function and environment are the
    same. The modules of the functions are imported to compare their code. Tasks that come ``after``
    a task with changed code are expected to run, since their arguments may be others.

    Parameters
    ----------
    run
        Directory of the run.
    spec
        What the manifest says.
    script
        The workflow's script. It is loaded, and not run, if it defines functions of the calls.
    """
    results = results_of(str(run))
    kept = [
        call
        for call in results.log.calls()
        if call.task in spec.tasks and call.key and call.end in (Ended.KEPT, Ended.ANSWERED)
    ]
    remembered = RememberedAgain.of(spec, list(StoredRows(stream_path(run, "remembered"))))
    names = {call.function for call in kept} | remembered.functions
    with functions_now(names, script) as functions:
        of_kept = _compared(kept, results, spec, functions)
        of_remembered = remembered.compared(functions)
    changed = {
        task: of_kept.changed.get(task, set()) | of_remembered.changed.get(task, set())
        for task in of_kept.changed.keys() | of_remembered.changed.keys()
    }
    stale = _with_those_after(changed, spec.tasks)
    fresh = [
        {task: number for task, number in each.same.items() if task not in stale}
        for each in (of_kept, of_remembered)
    ]
    reasons = (
        *_about_answers(fresh[0], f"answered from {run.name}"),
        *_about_answers(fresh[1], "found among the remembered results"),
        *_about_changes(changed, stale, of_kept.incomparable | of_remembered.incomparable),
        *remembered.about_unknown(run.name),
    )
    return Answered(Counter(fresh[0]) + Counter(fresh[1]), reasons)


def _compared(
    kept: Iterable[RunCall], results: RunResults, spec: DeploymentSpec, functions: Mapping[str, Any]
) -> Compared:
    """Return the calls whose results are kept, compared with functions as they are now."""
    environments = Remembering.of(spec).environments
    found, numbers, codes = Compared(), Counter[str](), dict[str, str | None]()
    keys = KeyMaker()
    for call in kept:
        name = call.function
        if name not in codes:
            codes[name] = _code(keys, functions.get(name))
        numbers[call.key] += 1
        around = {**environments.get(call.tag, {}), "python": python_version()}
        if codes[name] is None:
            found.incomparable.add(name)
        if (codes[name], digest_of(around)) != (call.code, call.environment):
            found.differs(call.task, name)
        elif results.holds(call.key, numbers[call.key]):
            found.same[call.task] += 1
    return found


def _code(keys: KeyMaker, function: Any) -> str | None:
    """Return the digest of a function's code; None where that cannot be known."""
    if function is None:
        return None
    try:
        return digest_of(keys.code(function, KeyOptions()).parts)
    except (UnfollowedReferencesError, UnstableValueError):
        return None


def _with_those_after(changed: Iterable[str], tasks: Mapping[str, TaskSpec]) -> set[str]:
    """Return tasks, and all that come after one of them."""
    found, size = set(changed), -1
    while len(found) != size:
        size = len(found)
        found |= {name for name, task in tasks.items() if found & set(task.after)}
    return found


def _about_answers(found: Mapping[str, int], how: str) -> Iterator[str]:
    for task, number in found.items():
        yield f"{task}: {counted(number, 'call')} {how}, if the arguments are the same."


def _about_changes(
    changed: Mapping[str, set[str]], stale: Iterable[str], incomparable: set[str]
) -> Iterator[str]:
    for task in sorted(stale):
        if task not in changed:
            yield f"{task}: its calls are expected to run, because earlier tasks run."
            continue
        names = ", ".join(sorted(changed[task]))
        known = not changed[task] & incomparable
        what = "code or environment changed" if known else "code cannot be compared without running"
        yield f"{task}: its calls are expected to run, because of {names}: {what}."
