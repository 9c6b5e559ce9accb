"""Output of a cluster's scheduler, managers and workers, including stopped ones."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from scalable.errors import ClusterError
from scalable.records import ClusterDirectory
from scalable.runs.streams import LOGS, StoredRows

#: Maximum number of bytes that are read from the end of a log, and bytes of the longest line.
LONGEST_BYTES = 1_000_000
#: Seconds between two reads of a followed log, and between two searches for new logs.
POLL_S = 0.2
LIST_S = 1.0
_SUFFIX = ".log"


@dataclass(frozen=True)
class LogFile:
    """The output of one program."""

    #: Name of the worker, ``scheduler``, or ``manager-ID``.
    worker: str
    #: Pool of the worker. None for the scheduler and managers.
    tag: str | None
    path: Path


def log_files(
    directory: ClusterDirectory, *, pool: str | None = None, worker: str | None = None
) -> list[LogFile]:
    """Return the logs of a cluster's workers, with the most recently written one last.
    If ``worker`` names another program, return its log. Raise ClusterError for an unknown pool or
    worker, and FileNotFoundError if the cluster was removed.
    """
    record = directory.record()
    directory.fetch_logs()
    services = [LogFile(p.stem, None, p) for p in sorted(directory.logs_dir.glob(f"*{_SUFFIX}"))]
    if worker is not None and (meant := [s for s in services if s.worker == worker]):
        return meant
    tags = tuple(dict.fromkeys((*record.tags, *(directory.status() or {}).get("pools", ()))))
    if pool is not None and pool not in tags:
        raise ClusterError(
            f"cluster {record.name!r} has no pool {pool!r}", hint=f"known pools: {', '.join(tags)}"
        )
    workers = _workers(directory, tags)
    if worker is not None and all(file.worker != worker for file in workers):
        known = ", ".join(file.worker for file in (*workers, *services)) or "none"
        raise ClusterError(f"worker {worker!r} has no log", hint=f"available logs: {known}")
    return [
        file
        for file in workers
        if (pool is None or file.tag == pool) and (worker is None or file.worker == worker)
    ]


def run_logs(
    run: Path,
    directory: str | None = None,
    *,
    pool: str | None = None,
    worker: str | None = None,
) -> list[LogFile]:
    """Return the logs of a run's workers, from its record or a shared directory."""
    recorded = _recorded({"run": str(run)})
    parent = run / LOGS if directory is None else Path(directory)
    paths = sorted(parent.glob(f"*{_SUFFIX}"), key=_changed)
    files = [LogFile(*recorded[path.stem], path) for path in paths if path.stem in recorded]
    found = [f for f in files if pool in (None, f.tag) and worker in (None, f.worker)]
    if not found and (pool or worker):
        known = ", ".join(file.worker for file in files) or "none"
        raise ClusterError(
            f"run {run.name} has no log of {worker or f'pool {pool}'}",
            hint=f"available logs: {known}",
        )
    return found


def _workers(directory: ClusterDirectory, tags: tuple[str, ...]) -> list[LogFile]:
    said = directory.scheduler() or {}
    asked = directory.record().log_dir
    parent = directory.worker_logs()
    if parent is None:
        return []
    recorded = _recorded(said)
    paths = sorted(parent.glob(f"*{_SUFFIX}"), key=_changed)
    # A link with the worker's name leads to a job's log.
    behind_links = {path.resolve() for path in paths if path.is_symlink()}
    found = []
    for path in paths:
        if path.stem in recorded:
            found.append(LogFile(*recorded[path.stem], path))
        elif asked is None and path not in behind_links:
            # Only this cluster writes here, so it is a worker whose start was not recorded.
            tag = _tag_of(path.stem, tags)
            found += [LogFile(path.stem, tag, path)] if tag is not None else []
    return found


def _recorded(said: Mapping[str, object]) -> dict[str, tuple[str, str]]:
    """Map the log names of all workers in a cluster's run record to (worker, tag)."""
    if not said.get("run"):
        return {}
    found = {}
    with suppress(OSError):
        for row in StoredRows(Path(str(said["run"])), "workers"):
            if row.get("worker") and row.get("tag"):
                name = str(row["worker"])
                found[re.sub(r"[^\w.-]", "_", name)] = (name, str(row["tag"]))
    return found


def _tag_of(worker: str, tags: tuple[str, ...]) -> str | None:
    """Return the longest tag that is a prefix of a worker's name, or None."""
    own = [tag for tag in tags if worker.startswith(f"{tag}-")]
    return max(own, key=len, default=None)


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def read_log(path: Path) -> str:
    """Return the last lines of a log, at most a million bytes. Empty if the file is gone."""
    try:
        with path.open("rb") as file:
            _seek_last(file.fileno())
            return os.read(file.fileno(), LONGEST_BYTES).decode(errors="replace")
    except OSError:
        return ""


def _seek_last(descriptor: int) -> int:
    """Seek to the first whole line in a log's last megabyte, and return its position."""
    start = max(0, os.fstat(descriptor).st_size - LONGEST_BYTES)
    os.lseek(descriptor, start, os.SEEK_SET)
    if start:
        torn = os.read(descriptor, LONGEST_BYTES).find(b"\n") + 1
        start = os.lseek(descriptor, start + torn, os.SEEK_SET)
    return start


def follow_lines(
    directory: ClusterDirectory, *, pool: str | None = None, worker: str | None = None
) -> Iterator[tuple[str, str]]:
    """Yield (worker, line) for existing and new output, until the cluster is gone."""
    # Those that are no longer listed too: the start of a last line may have been read of them.
    tails = {file.path: _Tail(file) for file in log_files(directory, pool=pool, worker=worker)}
    looked_at = time.monotonic()
    while True:
        # Before the logs are read, so that everything written until the end is shown.
        gone = not directory.path.exists()
        if not gone and time.monotonic() - looked_at > LIST_S:
            looked_at = time.monotonic()
            with suppress(FileNotFoundError, ClusterError):  # the cluster may be stopping
                for file in log_files(directory, pool=pool, worker=worker):
                    tails.setdefault(file.path, _Tail(file))
        for tail in tails.values():
            yield from ((tail.worker, line) for line in tail.lines(last=gone))
        if gone:
            return
        time.sleep(POLL_S)


class _Tail:
    """Follower of a log, like ``tail -f``, from the last megabyte on. The file may be missing."""

    def __init__(self, file: LogFile) -> None:
        self.worker = file.worker
        self._path = file.path
        self._at: int | None = None
        self._torn = b""

    def lines(self, *, last: bool) -> list[str]:
        """Return the lines since the last call, including an unfinished line only if ``last``."""
        *whole, self._torn = (self._torn + self._read()).split(b"\n")
        if self._torn and (last or len(self._torn) >= LONGEST_BYTES):
            whole.append(self._torn)
            self._torn = b""
        return [line.decode(errors="replace") for line in whole]

    def _read(self) -> bytes:
        try:
            with self._path.open("rb") as file:
                if self._at is None:
                    self._at = _seek_last(file.fileno())
                if os.fstat(file.fileno()).st_size < self._at:
                    self._at = 0  # the file was replaced
                data = os.pread(file.fileno(), LONGEST_BYTES, self._at)
        except OSError:
            return b""
        self._at += len(data)
        return data
