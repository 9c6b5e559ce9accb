"""Where runs are, and which one is meant."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

from scalable.errors import RunError
from scalable.telemetry.streams import RUN_FILE, decode_object

LATEST = "latest"
_LISTED = 5


def list_runs(runs_dir: str | os.PathLike[str]) -> list[Path]:
    """The directories of all runs that can be read, the latest start first.

    Parameters
    ----------
    runs_dir
        Directory that holds the runs; one that does not exist holds none.
    """
    starts = {path: _started_at(path) for path in Path(runs_dir).glob("run-*")}
    known = [(start, path) for path, start in starts.items() if start is not None]
    return [path for _, path in sorted(known, reverse=True)]


def find_run(runs_dir: str | os.PathLike[str], run_id: str | None = None) -> Path:
    """The directory of one run.

    Parameters
    ----------
    runs_dir
        Directory that holds the runs.
    run_id
        A run's id or the beginning of it; None or ``latest``: the run that started last.

    Raises
    ------
    RunError
        When there is no such run, or the beginning fits several.
    """
    runs = list_runs(runs_dir)
    where = Path(runs_dir).absolute()
    if not runs:
        raise RunError(
            f"no run is recorded in {where}",
            hint="`scalable run` records one; --runs-dir or SCALABLE_RUNS_DIR says where to look",
        )
    if run_id in (None, LATEST):
        return runs[0]
    matches = [path for path in runs if path.name.startswith(run_id)]
    exact = [path for path in matches if path.name == run_id]
    if len(exact or matches) == 1:
        return (exact or matches)[0]
    if matches:
        raise RunError(f"{run_id!r} is the beginning of several runs", hint=_listing(matches))
    raise RunError(f"no run {run_id!r} is recorded in {where}", hint=_listing(runs))


def _listing(runs: list[Path]) -> str:
    names = ", ".join(path.name for path in runs[:_LISTED])
    more = len(runs) - _LISTED
    return f"there are {names}" + (f" and {more} more" if more > 0 else "")


def _started_at(path: Path) -> datetime | None:
    try:
        run = decode_object((path / RUN_FILE).read_bytes())
    except OSError:
        return None
    if run is None:
        return None
    try:
        moment = datetime.fromisoformat(str(run.get("started_at")))
    except ValueError:
        return datetime.min.replace(tzinfo=UTC)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
