"""The calls that a resumed run would answer, by task, with the code as it is now."""

from __future__ import annotations

import importlib
import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalable.caching.errors import UnfollowedReferencesError, UnstableValueError
from scalable.caching.key import KeyMaker, KeyOptions, digest_of
from scalable.caching.packages import python_version
from scalable.caching.run_calls import Ended
from scalable.caching.run_results import results_of
from scalable.errors import RunError
from scalable.session.script_module import code_of_workflow
from scalable.spec import DeploymentSpec, TaskSpec
from scalable.spec.remembering import Remembering
from scalable.units import counted

logger = logging.getLogger("scalable.session")

_SCRIPT = "__main__."


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

    These are calls whose result is kept and whose function and environment are the same. The
    modules of the functions are imported to compare their code. Tasks that come ``after`` a task
    with changed code are expected to run, since their arguments may be others.

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
    calls = [call for call in results.log.calls() if call.task in spec.tasks]
    kept = [call for call in calls if call.end in (Ended.KEPT, Ended.ANSWERED) and call.key]
    now = _code_now({call.function for call in kept}, script)
    environments = Remembering.of(spec).environments
    numbers: Counter[str] = Counter()
    answered: Counter[str] = Counter()
    changed: dict[str, set[str]] = {}
    for call in kept:
        numbers[call.key] += 1
        around = {**environments.get(call.tag, {}), "python": python_version()}
        if (now[call.function], digest_of(around)) != (call.code, call.environment):
            changed.setdefault(call.task, set()).add(call.function)
        elif results.holds(call.key, numbers[call.key]):
            answered[call.task] += 1
    stale = _with_those_after(changed, spec.tasks)
    found = {task: number for task, number in answered.items() if task not in stale}
    return Answered(found, tuple(_reasons(run.name, found, changed, stale, now)))


def _code_now(functions: Iterable[str], script: Path) -> dict[str, str | None]:
    """Return function -> digest of its code as it is now; None where that cannot be known."""
    names = sorted(functions)
    keys, found = KeyMaker(), dict[str, str | None]()
    with ExitStack() as stack:
        try:
            needs_script = any(name.startswith(_SCRIPT) for name in names)
            stack.enter_context(code_of_workflow(script, needs_script=needs_script))
        except RunError:  # the script cannot be loaded without running it
            names = [name for name in names if not name.startswith(_SCRIPT)]
            stack.enter_context(code_of_workflow(script, needs_script=False))
        for name in names:
            try:
                found[name] = digest_of(keys.code(_named(name), KeyOptions()).parts)
            except (UnfollowedReferencesError, UnstableValueError, LookupError):
                found[name] = None
    return dict.fromkeys(functions) | found


def _named(name: str) -> Any:
    """Return a function by its name with the module; raise LookupError if there is none."""
    parts = name.split(".")
    for position in range(len(parts) - 1, 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:position]))
            for part in parts[position:]:
                found = getattr(found, part)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the user's module is run
            logger.debug("%s is not found in %s: %r", name, ".".join(parts[:position]), error)
            continue
        return found
    raise LookupError(name)


def _with_those_after(changed: Iterable[str], tasks: Mapping[str, TaskSpec]) -> set[str]:
    """Return tasks, and all that come after one of them."""
    found, size = set(changed), -1
    while len(found) != size:
        size = len(found)
        found |= {name for name, task in tasks.items() if found & set(task.after)}
    return found


def _reasons(
    run: str,
    found: Mapping[str, int],
    changed: Mapping[str, set[str]],
    stale: Iterable[str],
    now: Mapping[str, str | None],
) -> Sequence[str]:
    sentences = [
        f"{task}: {counted(number, 'call')} answered from {run}, if the arguments are the same."
        for task, number in found.items()
    ]
    for task in sorted(stale):
        if task not in changed:
            sentences.append(f"{task}: its calls are expected to run, because earlier tasks run.")
            continue
        names = ", ".join(sorted(changed[task]))
        known = all(now[name] is not None for name in changed[task])
        what = "code or environment changed" if known else "code cannot be compared without running"
        sentences.append(f"{task}: its calls are expected to run, because of {names}: {what}.")
    return sentences
