"""Overview of all recorded runs, search for one, and their removal."""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import stat
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalable.errors import RunError
from scalable.files import read_regular
from scalable.liveness import SILENCE_S
from scalable.model.codec import Noun
from scalable.runs.reading import last_write, read_run, read_status
from scalable.runs.streams import (
    RUN_FILE,
    SUMMARY_FILE,
    decode_object,
    mapping,
    number,
    read_or_empty,
    stream_path,
    text,
)
from scalable.runs.summary import epoch, summarize
from scalable.views.tables import ELLIPSIS

logger = logging.getLogger("scalable.runs")

#: Maximum bytes of ``tasks.jsonl`` to count the tasks of a run that has no summary.
_COUNTED_BYTES = 50_000_000
#: Prefix of the name that a directory gets before it is removed.
_REMOVED = ".removed-"
_NAME = "run-*"


@dataclass(frozen=True)
class RunOverview(Noun):
    """One run in a list of runs. None means unknown."""

    run_id: str
    project: str
    target: str
    #: Status as in :class:`RunRecord`, where ``interrupted`` is a run that crashed.
    state: str
    #: Start time (ISO 8601).
    started_at: str | None = None
    #: Seconds until the run finished, or until its last row.
    duration_s: float | None = None
    cost: float | None = None
    currency: str | None = None
    tasks: int | None = None
    failed: int | None = None
    path: str = ""


def run_overviews(runs_dir: str | os.PathLike[str]) -> tuple[list[RunOverview], list[str]]:
    """Return all runs, the latest first, and messages about unreadable ones."""
    found: list[RunOverview] = []
    faults: list[str] = []
    for path in sorted(Path(runs_dir).glob(_NAME)):
        try:
            found.append(_overview(path))
        except (RunError, OSError) as error:
            faults.append(str(error))
    found.sort(key=lambda run: (epoch(run.started_at) or 0.0, run.run_id), reverse=True)
    return found, faults


def _overview(path: Path) -> RunOverview:
    run, state = read_status(path)
    summary = _summary(path, state)
    paid, tasks = mapping(summary.get("cost")), mapping(summary.get("tasks"))
    counts = {name: int(number(count) or 0) for name, count in tasks.items()}
    return RunOverview(
        run_id=path.name,
        project=text(run.get("project")) or "",
        target=text(run.get("target")) or "",
        state=state,
        started_at=text(run.get("started_at")),
        duration_s=number(summary.get("duration_s")),
        cost=number(paid.get("actual")),
        currency=text(paid.get("currency")),
        tasks=sum(counts.values()) if "tasks" in summary else None,
        failed=counts.get("failed", 0) if "tasks" in summary else None,
        path=str(path),
    )


def _summary(path: Path, state: str) -> Mapping[str, Any]:
    """Return the summary of a run, computing it if the run has not written one."""
    written = None
    if state not in ("running", "interrupted"):
        written = decode_object(read_or_empty(path / SUMMARY_FILE))
    if written is not None:
        return written
    tasks = stream_path(path, "tasks")
    if tasks.exists() and tasks.stat().st_size > _COUNTED_BYTES:
        return {}
    return summarize(read_run(path)).to_dict()


def chosen_runs(
    runs: Sequence[RunOverview],
    *,
    keep: int | None = None,
    older_than_s: float | None = None,
    now: float | None = None,
) -> tuple[list[RunOverview], dict[str, str]]:
    """Return the runs beyond ``keep`` and ``older_than_s`` to remove, and why others must stay."""
    moment = time.time() if now is None else now
    found = [
        (run, _stays(Path(run.path)))
        for place, run in enumerate(runs)
        if not (keep is not None and place < keep)
        and not (older_than_s is not None and moment - (epoch(run.started_at) or 0) <= older_than_s)
    ]
    chosen = [run for run, reason in found if reason is None]
    return chosen, {run.run_id: reason for run, reason in found if reason is not None}


def remove_runs(runs: Iterable[RunOverview]) -> tuple[list[str], dict[str, str]]:
    """Remove runs returned by :func:`chosen_runs`. Return the removed ids, and why others stay.
    Each run is checked again before it is removed. Links are removed without their targets.
    """
    removed: list[str] = []
    kept: dict[str, str] = {}
    for run in runs:
        path = Path(run.path)
        reason = _stays(path)
        if reason is None:
            # Under its new name no reader takes it for a whole run.
            aside = path.with_name(f"{_REMOVED}{path.name}-{secrets.token_hex(4)}")
            try:
                path.rename(aside)
                shutil.rmtree(aside)
            except OSError as error:
                reason = f"cannot be removed: {error}"
        if reason is None:
            logger.debug("run %s removed", path)
            removed.append(run.run_id)
        else:
            kept[run.run_id] = reason
    return removed, kept


def _stays(path: Path) -> str | None:
    """Return a reason why a directory must not be removed, or None."""
    try:
        fault = _is_no_directory_of_ours(path)
        if fault is not None:
            return fault
        _, state = read_status(path)
        silence = time.time() - last_write(path)
    except (OSError, RunError) as error:
        return f"it is not a readable run: {error}"
    if state == "running":
        return "it is still running"
    if silence < SILENCE_S:
        return f"it was written {max(0.0, silence):.0f} s ago (limit: {SILENCE_S:.0f} s)"
    return None


def _is_no_directory_of_ours(path: Path) -> str | None:
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode):
        return "it is a symbolic link"
    if not stat.S_ISDIR(status.st_mode):
        return "it is not a directory"
    if status.st_uid != os.geteuid():
        return f"it belongs to another user (uid {status.st_uid})"
    return f"its {RUN_FILE} is a symbolic link" if (path / RUN_FILE).is_symlink() else None


# Search -------------------------------------------------------------------------------------------

LATEST = "latest"
_LISTED = 5


def list_runs(runs_dir: str | os.PathLike[str]) -> list[Path]:
    """Return the directories of all readable runs, the latest first, or [] if there are none."""
    known: list[tuple[float, Path]] = []
    for path in Path(runs_dir).glob(_NAME):
        with suppress(OSError):
            run = decode_object(read_regular(path / RUN_FILE))
            if run is not None:
                known.append((epoch(run.get("started_at")) or 0.0, path))
    return [path for _, path in sorted(known, reverse=True)]


def find_run(runs_dir: str | os.PathLike[str], run_id: str | None = None) -> Path:
    """Return the run with an id or unique prefix, by default the latest. May raise RunError.
    The middle of an id may be cut as tables show it.
    """
    runs = list_runs(runs_dir)
    where = Path(runs_dir).absolute()
    head, _, tail = ("" if run_id in (None, LATEST) else str(run_id)).partition(ELLIPSIS)

    def is_meant(path: Path) -> bool:
        return path.name.startswith(head) and path.name.endswith(tail)

    matches = list(filter(is_meant, runs))
    damaged = list(filter(is_meant, where.glob(_NAME)))
    if damaged and not matches:
        read_run(max(damaged))  # raises its fault
    if not runs:
        raise RunError(
            f"{where} contains no recorded run",
            hint="record one with `scalable run`, or set another directory with --runs-dir "
            "or SCALABLE_RUNS_DIR",
        )
    if run_id in (None, LATEST):
        return runs[0]
    exact = [path for path in matches if path.name == run_id]
    if len(exact or matches) == 1:
        return (exact or matches)[0]
    if matches:
        raise RunError(f"several runs start with {run_id!r}", hint=_listing(matches))
    raise RunError(f"{where} contains no run {run_id!r}", hint=_listing(runs))


def _listing(runs: list[Path]) -> str:
    names = ", ".join(path.name for path in runs[:_LISTED])
    more = len(runs) - _LISTED
    return f"recorded runs: {names}" + (f" and {more} more" if more > 0 else "")
