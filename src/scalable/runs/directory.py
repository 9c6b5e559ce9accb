"""`RunDirectory`: creates a run's directory, appends rows and closes the run."""

from __future__ import annotations

import logging
import os
import platform
import re
import secrets
import shutil
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import psutil

from scalable import settings
from scalable.errors import RunError
from scalable.files import check_not_planted, write_json, write_private, write_whole
from scalable.liveness import identify_process
from scalable.runs.calls import RecordedTasks
from scalable.runs.history import MEASURED, keep_found, measure, write_measurements
from scalable.runs.reading import RunRecord, read_run
from scalable.runs.streams import (
    LOCK_FILE,
    MANIFEST_FILE,
    PLAN_FILE,
    RUN_FILE,
    STREAMS,
    SUMMARY_FILE,
    encode_row,
    stream_path,
    write_fully,
)
from scalable.runs.summary import summarize

logger = logging.getLogger("scalable.runs")

EndStatus = Literal["completed", "failed", "cancelled"]

_ATTEMPTS = 100


class RunDirectory:
    """Directory of one run, open for writing. Thread-safe.
    If writing fails, one warning is logged and recording stops, but the workflow continues. Several
    processes on one host may append to the same run. Processes on several hosts must not append on
    NFS, where appending is not atomic between hosts.
    """

    def __init__(self, path: Path, descriptors: Mapping[str, int]) -> None:
        self.path = path
        self._descriptors = dict(descriptors)
        self._lock = threading.Lock()
        self._closed = False
        #: What is told of rows that could not be written.
        self._broke_off: str | None = None

    @property
    def run_id(self) -> str:
        """Id of the run, which is the name of its directory."""
        return self.path.name

    @classmethod
    def create(
        cls,
        project: str,
        target: str,
        *,
        manifest_yaml: str,
        manifest_lock: str,
        plan: Mapping[str, Any],
        runs_dir: Path | None = None,
        provider: str = "",
    ) -> RunDirectory:
        """Create the directory of a new run with status ``running``. This process owns the run.
        ``manifest_lock`` is the manifest's digest (64 hex digits). Raises RunError on failure.
        """
        parent = Path(settings.runs_dir() if runs_dir is None else runs_dir)
        started_at = datetime.now(UTC)
        path = None
        try:
            parent = parent.absolute()  # fails in a working directory that was removed
            path = _make_directory(parent, project, started_at)
            # Private: the manifest includes the environment of workers, which may contain secrets.
            write_private(path / MANIFEST_FILE, manifest_yaml)
            write_whole(path / LOCK_FILE, manifest_lock + "\n")
            write_json(path / PLAN_FILE, plan)
            descriptors = _open_streams(path)
            # This file comes last, because it makes the directory a run.
            names = {"project": project, "target": target, "provider": provider}
            counts = plan.get("scale_plan", {}).get("workers_by_tag", {})
            write_json(path / RUN_FILE, _new_run(path.name, names, started_at, counts))
        except OSError as error:
            if path is not None:
                shutil.rmtree(path, ignore_errors=True)
            # Not chained: the message is complete, and scripts show it with a traceback.
            raise _not_recorded(parent, str(error)) from None
        keep_found(parent)
        return cls(path, descriptors)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> RunDirectory:
        """Open another process's run to append rows. Raises RunError if that is impossible."""
        directory = Path(path).absolute()
        try:
            return cls(directory, _open_streams(directory))
        except OSError as error:
            raise RunError(f"cannot write to the run in {directory}: {error}") from error

    def append(self, stream: str, row: Mapping[str, Any]) -> None:
        """Append one row to a stream."""
        self.extend(stream, (row,))

    def extend(self, stream: str, rows: Sequence[Mapping[str, Any] | str]) -> None:
        """Append rows to a stream in one write, without rows of other writers in between.
        A row is a mapping or an encoded JSON object without a newline. Raises ValueError for an
        unknown stream.
        """
        if stream not in STREAMS:
            raise ValueError(f"unknown stream {stream!r}; available streams: {', '.join(STREAMS)}")
        if not rows:
            return
        lines = [row if isinstance(row, str) else encode_row(row) for row in rows]
        data = ("\n".join(lines) + "\n").encode(errors="replace")
        with self._lock:
            descriptor = self._descriptors.get(stream)
            if descriptor is None:
                return
            try:
                write_fully(descriptor, data)
                if os.fstat(descriptor).st_nlink == 0:
                    # Writing to a deleted file succeeds, but the rows are lost.
                    raise FileNotFoundError(f"{stream_path(self.path, stream)} was removed")
            except OSError as error:
                self._close_streams()
                self._warn(error)

    def release(self) -> None:
        """Stop writing without changing the run's status. Later calls have no effect."""
        with self._lock:
            self._closed = True
            self._close_streams()

    def close(
        self, status: EndStatus, *, error: str | None = None, exit_code: int | None = None
    ) -> None:
        """Write the final status and the summary. Later calls have no effect."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._close_streams()
        try:
            record = read_run(self.path)
            if record.run.get("status") == "running":
                ended = {"status": status, "error": error or self._broke_off}
                _end(record, ended | {"exit_code": exit_code})
        except (OSError, RunError) as failure:
            self._warn(failure)

    def _close_streams(self) -> None:
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()

    def _warn(self, error: Exception) -> None:
        if self._broke_off is None:
            self._broke_off = f"tasks since {datetime.now(UTC):%H:%M:%S} UTC are missing: {error}"
            logger.warning("run %s is no longer recorded: %s", self.run_id, error)


def amend_status(
    path: str | os.PathLike[str], status: EndStatus, exit_code: int | None = None
) -> None:
    """Correct the final status of a run, for example after the workflow's process has exited.
    ``exit_code=None`` keeps the recorded code. RunError if the run is missing or not writable.
    """
    changes = {"status": status} | ({} if exit_code is None else {"exit_code": exit_code})
    try:
        _end(read_run(path), changes)
    except OSError as error:
        raise RunError(f"cannot write to the run in {path}: {error}") from error


def _end(record: RunRecord, changes: Mapping[str, Any]) -> None:
    now = datetime.now(UTC).isoformat(timespec="microseconds")
    run = {**record.run, "ended_at": record.run.get("ended_at") or now, **changes}
    calls = RecordedTasks(record.tasks)
    summary = summarize(replace(record, run=run, status=run["status"]), calls)
    run["failed_tasks"] = summary.tasks.get("failed", 0)
    # The status is written first, because the summary can be recreated from the record.
    write_json(record.path / RUN_FILE, run)
    write_json(record.path / SUMMARY_FILE, summary.to_dict())
    sizes = {stream: getattr(record, stream).size for stream in MEASURED}
    measured = measure(calls, record.workers, record.remembered)
    write_measurements(record.path, measured, sizes)


def _new_run(
    run_id: str, names: Mapping[str, str], started_at: datetime, counts: Mapping[str, int]
) -> dict[str, Any]:
    """Return the contents of run.json for a run that starts now."""
    return {
        "run_id": run_id,
        **names,
        "status": "running",
        "started_at": started_at.isoformat(timespec="microseconds"),
        "ended_at": None,
        **identify_process(),
        "version": _version_of("scalable"),
        "versions": {"python": platform.python_version()}
        | {package: _version_of(package) for package in ("dask", "distributed", "scalable")},
        "machine": {
            "platform": platform.platform(),
            "cpus": os.cpu_count(),
            "memory": psutil.virtual_memory().total,
        },
        "failed_tasks": 0,
        "workers_by_tag": counts,
        "exit_code": None,
        "error": None,
    }


def require_writable() -> None:
    """Raise RunError if the directory of runs certainly cannot be written."""
    parent = settings.runs_dir().absolute()
    present = next(path for path in (parent, *parent.parents) if path.exists())
    if not present.is_dir():
        raise _not_recorded(parent, f"{present} is not a directory")
    if not os.access(present, os.W_OK | os.X_OK):
        raise _not_recorded(parent, f"you may not write to {present}")


def _not_recorded(parent: Path, why: str) -> RunError:
    return RunError(
        f"cannot record a run in {parent}: {why}",
        hint=f"set {settings.RUNS_DIR} to a writable directory, "
        f"or {settings.TELEMETRY}=0 to record nothing",
    )


def _make_directory(parent: Path, project: str, started_at: datetime) -> Path:
    parent.mkdir(parents=True, exist_ok=True)
    # Created by others in a shared directory, they could redirect our writes.
    for directory in (parent, parent.parent):
        if directory is parent or directory.name == settings.DIRECTORY:
            check_not_planted(directory)
    ignored = parent.parent / ".gitignore"
    if parent.parent.name == settings.DIRECTORY and not ignored.exists():
        ignored.write_text("*\n")  # records are not part of the user's repository
    slug = re.sub(r"[^A-Za-z0-9._]+", "-", project).strip("-.")[:40] or "project"
    for _ in range(_ATTEMPTS):
        path = parent / f"run-{started_at:%Y%m%dT%H%M%SZ}-{slug}-{secrets.token_hex(4)}"
        try:
            path.mkdir(mode=0o700)
        except FileExistsError:
            continue
        return path
    raise FileExistsError(f"{_ATTEMPTS} run directories with random names already exist")


def _open_streams(directory: Path) -> dict[str, int]:
    descriptors: dict[str, int] = {}
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    try:
        for stream in STREAMS:
            descriptors[stream] = os.open(stream_path(directory, stream), flags, 0o600)
    except OSError:
        for descriptor in descriptors.values():
            os.close(descriptor)
        raise
    return descriptors


def _version_of(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "unknown"
