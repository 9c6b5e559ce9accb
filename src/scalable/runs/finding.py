"""Search for recorded runs."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

from scalable.errors import RunError
from scalable.files import read_regular
from scalable.runs.streams import RUN_FILE, decode_object

LATEST = "latest"
_LISTED = 5


def list_runs(runs_dir: str | os.PathLike[str]) -> list[Path]:
    """Return the directories of all readable runs, the latest first, or [] if there are none."""
    starts = {path: _started_at(path) for path in Path(runs_dir).glob("run-*")}
    known = [(start, path) for path, start in starts.items() if start is not None]
    return [path for _, path in sorted(known, reverse=True)]


def find_run(runs_dir: str | os.PathLike[str], run_id: str | None = None) -> Path:
    """Return the run with an id or unique prefix, by default the latest. May raise RunError."""
    runs = list_runs(runs_dir)
    where = Path(runs_dir).absolute()
    if not runs:
        raise RunError(
            f"{where} contains no recorded run",
            hint="record one with `scalable run`, or set another directory with --runs-dir "
            "or SCALABLE_RUNS_DIR",
        )
    if run_id in (None, LATEST):
        return runs[0]
    matches = [path for path in runs if path.name.startswith(run_id)]
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


def _started_at(path: Path) -> datetime | None:
    try:
        run = decode_object(read_regular(path / RUN_FILE))
    except OSError:
        return None
    if run is None:
        return None
    try:
        moment = datetime.fromisoformat(str(run.get("started_at")))
    except ValueError:
        return datetime.min.replace(tzinfo=UTC)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
