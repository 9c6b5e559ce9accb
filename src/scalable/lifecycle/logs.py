"""What the programs of a cluster have written, also those that are gone."""

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
from scalable.telemetry.streams import read_rows, stream_path

#: Of each log at most so much of its end is read, and of a line as well.
LONGEST_BYTES = 1_000_000
#: How often a log is looked at that is followed, and how often it is looked for new ones.
POLL_S = 0.2
LIST_S = 1.0
_SUFFIX = ".log"


@dataclass(frozen=True)
class LogFile:
    """Output of one program.

    Attributes
    ----------
    worker
        Name of the worker; or ``scheduler``, or ``manager-ID``.
    tag
        Its pool, None for the others.
    path
        The file.
    """

    worker: str
    tag: str | None
    path: Path


def log_files(
    directory: ClusterDirectory, *, pool: str | None = None, worker: str | None = None
) -> list[LogFile]:
    """Logs of a cluster.

    Parameters
    ----------
    directory
        The cluster.
    pool
        Only workers of this tag.
    worker
        Only this one; ``scheduler`` and ``manager-ID`` are given only when they are asked for.

    Returns
    -------
    list
        What was written to last comes last.

    Raises
    ------
    ClusterError
        When there is no such pool or worker.
    FileNotFoundError
        When the cluster is gone.
    """
    record = directory.record()
    services = [LogFile(p.stem, None, p) for p in sorted(directory.logs_dir.glob(f"*{_SUFFIX}"))]
    if worker is not None and (meant := [s for s in services if s.worker == worker]):
        return meant
    tags = tuple(dict.fromkeys((*record.tags, *_pool_tags(directory))))
    if pool is not None and pool not in tags:
        raise ClusterError(
            f"cluster {record.name!r} has no pool {pool!r}", hint=f"there are: {', '.join(tags)}"
        )
    workers = _workers(directory, tags)
    if worker is not None and all(file.worker != worker for file in workers):
        known = ", ".join(file.worker for file in (*workers, *services)) or "none"
        raise ClusterError(f"there is no log of worker {worker!r}", hint=f"there are: {known}")
    return [
        file
        for file in workers
        if (pool is None or file.tag == pool) and (worker is None or file.worker == worker)
    ]


def _workers(directory: ClusterDirectory, tags: tuple[str, ...]) -> list[LogFile]:
    said = directory.scheduler() or {}
    asked = directory.record().log_dir
    parent = asked or said.get("log_dir")
    if not parent:
        return []
    recorded = _recorded(said)
    paths = sorted(Path(parent).glob(f"*{_SUFFIX}"), key=_changed)
    # A job's log has the worker's name as a link.
    behind_links = {path.resolve() for path in paths if path.is_symlink()}
    found = []
    for path in paths:
        if path.stem in recorded:
            found.append(LogFile(*recorded[path.stem], path))
        elif asked is None and path not in behind_links:
            # Nobody else writes there: it is one whose start was not recorded.
            tag = _tag_of(path.stem, tags)
            found += [LogFile(path.stem, tag, path)] if tag is not None else []
    return found


def _recorded(said: Mapping[str, object]) -> dict[str, tuple[str, str]]:
    """Name of a log -> worker and tag, of all workers that a cluster's run has recorded."""
    if not said.get("run"):
        return {}
    found = {}
    with suppress(OSError):
        for row in read_rows(stream_path(Path(str(said["run"])), "workers"))[0]:
            if row.get("worker") and row.get("tag"):
                name = str(row["worker"])
                found[re.sub(r"[^\w.-]", "_", name)] = (name, str(row["tag"]))
    return found


def _pool_tags(directory: ClusterDirectory) -> tuple[str, ...]:
    return tuple((directory.status() or {"pools": {}})["pools"])


def _tag_of(worker: str, tags: tuple[str, ...]) -> str | None:
    """A worker's name begins with its tag; of several the longest is meant."""
    own = [tag for tag in tags if worker.startswith(f"{tag}-")]
    return max(own, key=len, default=None)


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def read_log(path: Path) -> str:
    """The last lines of a log, at most a million bytes; empty where it is gone."""
    try:
        with path.open("rb") as file:
            _seek_last(file.fileno())
            return os.read(file.fileno(), LONGEST_BYTES).decode(errors="replace")
    except OSError:
        return ""


def _seek_last(descriptor: int) -> int:
    """Go to the first whole line of a log's end; the position."""
    start = max(0, os.fstat(descriptor).st_size - LONGEST_BYTES)
    os.lseek(descriptor, start, os.SEEK_SET)
    if start:
        torn = os.read(descriptor, LONGEST_BYTES).find(b"\n") + 1
        start = os.lseek(descriptor, start + torn, os.SEEK_SET)
    return start


def follow_lines(
    directory: ClusterDirectory, *, pool: str | None = None, worker: str | None = None
) -> Iterator[tuple[str, str]]:
    """Worker and line, of what is there and what is added, until the cluster is gone.

    Parameters and errors are those of :func:`log_files`; a worker that comes later is followed too.
    """
    files = log_files(directory, pool=pool, worker=worker)
    tails: dict[Path, _Tail] = {}
    looked_at = time.monotonic()
    while True:
        # Before the logs are read: what was written until its end is still shown.
        gone = not directory.path.exists()
        if not gone and time.monotonic() - looked_at > LIST_S:
            looked_at = time.monotonic()
            with suppress(FileNotFoundError, ClusterError):  # it may be going at this moment
                files = log_files(directory, pool=pool, worker=worker)
        for file in files:
            tail = tails.setdefault(file.path, _Tail(file.path))
            yield from ((file.worker, line) for line in tail.lines(last=gone))
        if gone:
            return
        time.sleep(POLL_S)


class _Tail:
    """The lines of a log, from its end on.

    Parameters
    ----------
    path
        The file; it may come later, and go.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at: int | None = None
        self._torn = b""

    def lines(self, *, last: bool) -> list[str]:
        """Lines that are new, with one that has no end where it is the last time."""
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
                    self._at = 0  # it was begun anew
                data = os.pread(file.fileno(), LONGEST_BYTES, self._at)
        except OSError:
            return b""
        self._at += len(data)
        return data
